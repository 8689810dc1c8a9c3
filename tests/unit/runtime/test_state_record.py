"""Goal: the state that the hot path formats by hand is the `JobState` that the wire promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from schemas import headers as h
from schemas.ids import traceparent
from schemas.state import JobError, JobState, Status
from schemas.usage import read_usage
from streams import Context, Done, Flow, stage
from streams.config import load_settings
from streams.runtime.delivery import Delivery
from streams.runtime.records import RecordWriter
from streams.testing import RecordedEffects
from streams.timers.record import Timer, TimerRecord, decode
from tests.unit.runtime.fakes import TOPIC_ID, FakeMessage, delivery, make_tracker

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
FINISHED_US = 1_700_000_001_234_567


class Text(BaseModel):
    text: str


@stage("classify", emits="out")
def classify(text: Text, job: Context) -> Text:
    return text


WRITER = RecordWriter(Flow("mail", (classify,), sinks=("out",)), classify, load_settings(), "3.ab")


def read(d: Delivery) -> JobState:
    return JobState.model_validate_json(WRITER.records(d)[0][2] or b"")


@given(st.text(max_size=50), st.text(max_size=80), st.text(max_size=30))
def test_whatever_the_texts_hold_the_state_is_read_back_whole(
    payload: str, message: str, link: str
) -> None:
    d = delivery(make_tracker(), FakeMessage(b"{}", JOB.encode(), offset=17))
    d.identify(b"mail")
    d.attempt, d.started_us, d.link = 2, FINISHED_US - 5, link or None
    WRITER.conclude(d, Done(Text(text=payload)), FINISHED_US)
    state = read(d)
    assert (state.trace_id, state.seq, state.status) == (JOB, 1, Status.DONE)
    assert state.data == {"text": payload}
    assert (state.flow, state.stage, state.worker, state.attempts) == (
        "mail",
        "classify",
        "3.ab",
        2,
    )
    assert state.link == (link or None)
    assert state.updated_at.isoformat(timespec="milliseconds") == "2023-11-14T22:13:21.234+00:00"
    assert state.consumed is not None
    assert (state.consumed.topic_id, state.consumed.offset) == (TOPIC_ID, 17)
    assert state.timing is not None
    assert state.timing.finished_us == FINISHED_US
    assert state.timing.produced_us == state.timing.born_us == 1_700_000_000_000_000
    WRITER.fail(d, JobError(kind="rejected", message=message), FINISHED_US)
    failed = read(d)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert failed.error.message == message


def test_a_dead_letter_keeps_key_value_and_headers_as_they_were() -> None:
    headers = [("x", b"\xff"), ("x", b"again"), (h.TRACEPARENT, b"nonsense")]
    d = delivery(make_tracker(), FakeMessage(b"\xfe", b"\xff", headers, offset=17))
    d.identify(b"mail")
    WRITER.fail(d, JobError(kind="bad_record", message="broken"), FINISHED_US)
    topic, key, value, out_headers = WRITER.records(d)[1]
    assert (topic, key, value) == ("mail.classify.dlq", b"\xff", b"\xfe")
    assert out_headers[:3] == headers
    about = dict(out_headers[3:])
    assert (about[h.DLQ_TOPIC], about[h.DLQ_PARTITION], about[h.DLQ_OFFSET]) == (
        b"mail.classify",
        b"0",
        b"17",
    )
    assert about[h.DLQ_MESSAGE] == b"broken"
    assert about[h.DLQ_JOB].decode() == read(d).trace_id


def test_a_wait_is_a_state_with_its_time_and_a_timer_that_brings_the_record_back() -> None:
    headers = [("x", b"\xff"), (h.LINK, b"00-aa-bb-01")]
    d = delivery(make_tracker(), FakeMessage(b'{"text":"hi"}', b"customer-7", headers, offset=17))
    d.identify(b"mail")
    d.attempt = 2
    WRITER.wait(d, JobError(kind="retry", message="busy"), FINISHED_US + 60_000_000, FINISHED_US)
    state = read(d)
    assert (state.status, state.attempts, state.data, state.to) == (Status.WAITING, 2, None, ())
    assert state.wakes_at is not None
    assert state.wakes_at.isoformat(timespec="milliseconds") == "2023-11-14T22:14:21.234+00:00"
    topic, key, value, out = WRITER.records(d)[1]
    assert (topic, key, value) == ("timers", d.key, b'{"text":"hi"}')
    record = TimerRecord("timers", TOPIC_ID, 0, 0, 0, key, value, tuple(out))
    timer = decode(record)
    assert isinstance(timer, Timer)
    # Rounded up: never before its time.
    assert (timer.due_ms, timer.return_topic) == (1_700_000_061_235, "mail.classify")
    assert timer.headers[-3:-1] == tuple(headers)
    assert timer.headers[-1] == (h.TRACEPARENT, traceparent(d.job_id, d.seq).encode())

    back = delivery(make_tracker(), FakeMessage(value, key, list(timer.headers), offset=18))
    back.identify(b"mail")
    assert (back.job_id, back.seq, back.attempt, back.claimable) == (d.job_id, d.seq + 1, 2, True)
    assert (back.born_us, back.fault) == (d.born_us, None)


def test_a_wait_beyond_all_time_is_cut_to_what_can_be_written() -> None:
    d = delivery(make_tracker(), FakeMessage(b"{}", JOB.encode(), offset=17))
    d.identify(b"mail")
    WRITER.wait(d, JobError(kind="retry", message="busy"), 2**80, FINISHED_US)
    assert read(d).wakes_at is not None
    topic, key, value, out = WRITER.records(d)[1]
    assert isinstance(decode(TimerRecord(topic, TOPIC_ID, 0, 0, 0, key, value, tuple(out))), Timer)


ORIGINAL = "000000000000000000000000000000aa"


def test_whose_keys_they_are_goes_on_with_hand_offs_timers_and_letters() -> None:
    headers = [(h.RERUN, ORIGINAL.encode()), (h.KEYS_OF, ORIGINAL.encode())]
    d = delivery(make_tracker(), FakeMessage(b"{}", JOB.encode(), headers, offset=17))
    d.identify(b"mail")
    WRITER.conclude(d, Text(text="x"), FINISHED_US)
    _, key, value, out = WRITER.records(d)[1]
    names = [name for name, _ in out]
    assert names[:2] == [h.KEYS_OF, h.HOP]
    assert h.RERUN not in names
    after = delivery(make_tracker(), FakeMessage(value, key, out))
    after.identify(b"mail")
    assert (after.keys_of, after.job_id, after.seq, after.fault) == (ORIGINAL, JOB, 2, None)
    error = JobError(kind="rejected", message="no")
    WRITER.wait(d, error, FINISHED_US + 1, FINISHED_US)
    assert dict(WRITER.records(d)[1][3])[h.KEYS_OF] == ORIGINAL.encode()
    WRITER.fail(d, error, FINISHED_US)
    assert dict(WRITER.records(d)[1][3])[h.KEYS_OF] == ORIGINAL.encode()


def test_an_ordinary_hand_off_has_nothing_before_its_first_header() -> None:
    d = delivery(make_tracker(), FakeMessage(b"{}", JOB.encode()))
    d.identify(b"mail")
    WRITER.conclude(d, Text(text="x"), FINISHED_US)
    assert WRITER.records(d)[1][3][0][0] == h.HOP


@pytest.mark.parametrize("end", ["hand_off", "letter", "wait"])
def test_what_models_cost_goes_with_the_step_however_it_ends(end: str) -> None:
    d = delivery(make_tracker(), FakeMessage(b"{}", JOB.encode(), offset=17))
    d.identify(b"mail")
    for _ in range(2):  # two runs in one delivery
        job = Context(JOB, "mail", "classify", 1, 1, RecordedEffects(), counted=d)
        job.count_usage(
            request_model="m", response_model="\ud800" * 300, input_tokens=7, output_tokens=-1
        )
        job.count_usage(request_model="m", input_tokens=7, cached=True)
    error = JobError(kind="retry", message="busy")
    match end:
        case "hand_off":
            WRITER.conclude(d, Text(text="x"), FINISHED_US)
        case "letter":
            WRITER.fail(d, error, FINISHED_US)
        case "wait":
            WRITER.wait(d, error, FINISHED_US + 1, FINISHED_US)
    usage = read_usage(read(d).usage)
    assert usage is not None
    assert usage == job.usage
    assert (usage.calls, usage.cached, usage.input_tokens, usage.output_tokens) == (2, 2, 14, 0)
    assert [len(m.response_model or "") for m in usage.models] == [200, 0]


def test_a_hop_that_asked_no_model_does_not_speak_of_any() -> None:
    d = delivery(make_tracker(), FakeMessage(b"{}", JOB.encode(), offset=17))
    d.identify(b"mail")
    WRITER.conclude(d, Text(text="x"), FINISHED_US)
    assert b"usage" not in (WRITER.records(d)[0][2] or b"")
