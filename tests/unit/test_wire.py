"""Goal: what older programs wrote is read for ever. Golden files are added to, never changed."""

import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from schemas import headers as h
from schemas.ids import (
    id_from_coordinates,
    id_from_line,
    is_job_id,
    is_root_id,
    lineage,
    span_id,
    trace_id_of,
    traceparent,
)
from schemas.state import JobState, Status
from schemas.usage import read_usage
from streams.timers.record import Timer, TimerRecord, decode, encode

GOLDEN = Path(__file__).parent.parent / "golden" / "wire"


def test_the_first_version_of_a_job_state_is_read() -> None:
    state = JobState.model_validate_json((GOLDEN / "job_state.v1.json").read_bytes())
    assert (state.trace_id, state.seq, state.status) == (
        "4bf92f3577b34da6a3ce929d0e0e4736",
        3,
        Status.FAILED,
    )
    assert state.error is not None
    assert state.error.kind == "handler_failed"
    assert state.consumed is not None
    assert (state.consumed.topic, state.consumed.partition, state.consumed.offset) == (
        "mail.act",
        2,
        41,
    )
    assert state.timing is not None
    assert state.timing.finished_us - state.timing.started_us == 112_500


def test_a_job_state_that_waits_for_its_timer_is_read() -> None:
    state = JobState.model_validate_json((GOLDEN / "job_state_waiting.v1.json").read_bytes())
    assert (state.status, state.seq, state.attempts) == (Status.WAITING, 4, 2)
    assert state.wakes_at == datetime(2026, 11, 29, 18, 1, 0, 123_000, tzinfo=UTC)
    assert state.error is not None
    assert state.error.kind == "retry"


def test_what_a_job_state_tells_of_models_is_read() -> None:
    state = JobState.model_validate_json((GOLDEN / "job_state_usage.v1.json").read_bytes())
    usage = read_usage(state.usage)
    assert usage is not None
    assert (usage.names, usage.calls, usage.cached) == (("small",), 2, 1)
    assert (usage.input_tokens, usage.output_tokens) == (240, 18)
    assert usage.models[0].response_model == "small-2026-11"


def test_a_timer_record_is_read() -> None:
    spelled = json.loads((GOLDEN / "timer.v1.json").read_bytes())
    record = TimerRecord(
        "timers",
        UUID(int=1),
        0,
        0,
        0,
        spelled["key"].encode(),
        spelled["value"].encode(),
        tuple((name, value.encode()) for name, value in spelled["headers"]),
    )
    timer = decode(record)
    assert isinstance(timer, Timer)
    assert (timer.due_ms, timer.return_topic) == (1764439260123, "mail.act")
    assert timer.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert timer.headers[0] == (h.TIMER, b"retry")
    assert (dict(timer.headers)[h.SEQ], dict(timer.headers)[h.ATTEMPT]) == (b"4", b"2")
    assert encode(timer, "timers")[3] == list(record.headers or ())


def test_ids_do_not_change_between_releases() -> None:
    job = id_from_line("mail", b'{"subject":"hi"}', 0)
    assert job == "c5e07a0ab95f2f81a538c3f0c8632d36"
    assert span_id(job, 1) == "c5e07a0ab95f0002"


@given(st.uuids(), st.integers(0, 2**31 - 1), st.integers(0, 2**62))
def test_a_place_always_gives_the_same_usable_id(topic_id, partition: int, offset: int) -> None:
    job = id_from_coordinates(topic_id, partition, offset)
    assert is_job_id(job)
    assert job == id_from_coordinates(topic_id, partition, offset)
    assert job != id_from_coordinates(topic_id, partition, offset + 1)


@given(st.text("0123456789abcdef", min_size=32, max_size=32), st.sampled_from(["", "/0", "/7/1"]))
def test_the_spans_of_a_job_are_all_different_and_never_zero(root: str, child: str) -> None:
    spans = [span_id(root + child, seq) for seq in range(500)]
    assert len(set(spans)) == len(spans)
    assert all(len(s) == 16 and int(s, 16) for s in spans)


@given(st.binary(max_size=40) | st.text("0123456789abcdefg/", min_size=31, max_size=34))
def test_the_quick_check_of_a_key_agrees_with_the_whole_one(key: bytes | str) -> None:
    raw = key if isinstance(key, bytes) else key.encode()
    text = raw.decode(errors="replace")
    assert is_root_id(raw) == (is_job_id(text) and "/" not in text)


def test_the_context_of_a_hop_holds_its_trace_and_its_span() -> None:
    for job in ("4bf92f3577b34da6a3ce929d0e0e4736", "4bf92f3577b34da6a3ce929d0e0e4736/3"):
        for seq in (0, 1, 0xFFFE, 0xFFFF, 2**31):
            assert traceparent(job, seq) == f"00-{trace_id_of(job)}-{span_id(job, seq)}-01"


def test_children_share_their_parents_trace() -> None:
    parent = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert is_job_id(f"{parent}/2/0")
    assert lineage(f"{parent}/2/0") == [parent, f"{parent}/2", f"{parent}/2/0"]
    assert trace_id_of(f"{parent}/2/0") == parent
    assert not is_job_id(f"{parent}/")
    assert not is_job_id("0" * 32)
