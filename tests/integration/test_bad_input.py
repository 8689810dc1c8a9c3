"""Bad input never stops a partition and never vanishes (promise P5).

Each case lies between good neighbours in one partition. What cannot be processed is a complete dead
letter and a failed state; what only looks odd is done.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import headers as h
from schemas.ids import is_job_id
from schemas.state import JobState, Status
from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice, assert_projection_is_the_fold, steps_by_job
from tests.support.rig import Header, Rig, job_id
from tests.support.topics import Record

pytestmark = pytest.mark.services

GOOD = b'{"n": 5}'
KEY = job_id(1_000).encode()
OURS: list[Header] = [(h.FLOW, b"run"), (h.SEQ, b"1")]
FOREIGN = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

#: What → key, value, headers, words of the reason.
UNUSABLE: dict[str, tuple[bytes | None, bytes, list[Header], str]] = {
    "broken JSON": (job_id(1).encode(), b'{"n": ', [], "Invalid JSON"),
    "wrong schema": (
        job_id(2).encode(),
        b'{"n": "many"}',
        [],
        "n: Input should be a valid integer",
    ),
    "no object": (job_id(3).encode(), b"[]", [], "is no Job"),
    "empty value": (job_id(4).encode(), b"", [], "Invalid JSON"),
    "value that is not UTF-8": (job_id(5).encode(), b'{"n": 1, "gate": "\xff"}', [], "is no Job"),
    "deep nesting": (job_id(6).encode(), b'{"n":' + b"[" * 10_000, [], "is no Job"),
    "huge number": (job_id(7).encode(), b'{"n": 1' + b"0" * 5_000 + b"}", [], "is no Job"),
    "lone surrogate": (job_id(8).encode(), b'{"n": 1, "gate": "\\ud800"}', [], "is no Job"),
    "too large": (job_id(9).encode(), b'{"gate": "' + b"x" * 30_000 + b'"}', [], "the limit is"),
    "missing key": (None, b"{}", [], "Field required"),
    "key that is not UTF-8": (b"\xff\xfe", b"{}", [], "Field required"),
    "bad handoff_seq": (job_id(10).encode(), GOOD, [OURS[0], (h.SEQ, b"two")], "is no number"),
    "negative handoff_seq": (job_id(11).encode(), GOOD, [OURS[0], (h.SEQ, b"-5")], "out of range"),
    "endless handoff_seq": (job_id(12).encode(), GOOD, [OURS[0], (h.SEQ, b"9" * 30)], "range"),
    "null handoff_seq": (job_id(22).encode(), GOOD, [OURS[0], (h.SEQ, None)], "is no number"),
    "foreign flow": (job_id(13).encode(), GOOD, [(h.FLOW, b"mail"), OURS[1]], "another flow"),
    "no flow": (job_id(14).encode(), GOOD, [OURS[1]], "another flow"),
    "hand-off without a key": (None, GOOD, OURS, "no job id"),
    "hand-off with a strange key": (b"order-17", GOOD, OURS, "no job id"),
    "header values that are not UTF-8": (
        job_id(15).encode(),
        b"{}",
        [("x-\u00e9", b"\xff\xfe"), ("x-null", None), ("x-twice", b"1"), ("x-twice", b"2")],
        "Field required",
    ),
}

#: What → key, headers. All with a good value: these are jobs.
ODD: dict[str, tuple[bytes | None, list[Header]]] = {
    "missing key": (None, []),
    "empty key": (b"", []),
    "key that is no job id": (b"order-17", []),
    "key that is not UTF-8": (b"\xff\xfe", []),
    "key in upper case": (b"4BF92F3577B34DA6A3CE929D0E0E4736", []),
    "key of zeros": (b"0" * 32, []),
    "key of a child": (KEY + b"/1", []),
    "unknown headers": (job_id(20).encode(), [("x-tenant", b"\xff"), ("", b""), ("x", None)]),
    "duplicate headers": (job_id(21).encode(), [("x", b"1"), ("x", b"2")]),
    "foreign traceparent": (job_id(23).encode(), [(h.TRACEPARENT, FOREIGN)]),
    "broken traceparent": (job_id(24).encode(), [(h.TRACEPARENT, b"\xff\0 no trace")]),
    "null traceparent": (job_id(25).encode(), [(h.TRACEPARENT, None)]),
    "handoff_born that is no number": (job_id(26).encode(), [(h.BORN, b"noon")]),
    "handoff_born beyond all time": (job_id(27).encode(), [(h.BORN, b"9" * 30)]),
    "negative handoff_born": (job_id(28).encode(), [(h.BORN, b"-1")]),
    "empty handoff_born": (job_id(29).encode(), [(h.BORN, b"")]),
}


def _coordinates(state: JobState) -> tuple[str, int, int]:
    assert state.consumed is not None
    return state.consumed.topic, state.consumed.partition, state.consumed.offset


def _neighbour(n: int) -> str:
    return job_id(5_000 + n)


def _put_with_neighbours(rig: Rig, records: list[tuple[bytes | None, bytes, list[Header]]]) -> None:
    for n, (key, value, headers) in enumerate(records):
        rig.put("work", _neighbour(n).encode(), GOOD, partition=0)
        rig.put("work", key, value, headers, partition=0)
    rig.flush()


def _assert_neighbours_done(rig: Rig, count: int) -> None:
    done = {r.job for r in rig.records("finish")}
    assert {_neighbour(n) for n in range(count)} <= done


def test_each_unusable_record_is_a_complete_dead_letter_and_its_neighbours_are_done(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_payload_bytes=20_000) as rig:
        _put_with_neighbours(rig, [case[:3] for case in UNUSABLE.values()])
        rig.worker("work", "projector")
        rig.wait_drained("work")
        _assert_neighbours_done(rig, len(UNUSABLE))
        assert_no_step_twice(rig)
        letters = {int(r.header(h.DLQ_OFFSET) or b"-1"): r for r in rig.dead_letters("work")}
        states = {_coordinates(s)[2]: s for s in rig.states()}
        originals = [r for r in rig.records("work") if r.value != GOOD or r.headers or not r.key]
        assert len(originals) == len(letters) == len(UNUSABLE)
        for (what, case), original in zip(UNUSABLE.items(), originals, strict=True):
            _check_letter(rig, what, original, letters[original.offset])
            state = states[original.offset]
            assert state.status is Status.FAILED, what
            assert state.error is not None
            assert case[3] in state.error.message, what
            assert state.error.kind == "bad_record", what
            assert is_job_id(state.trace_id), what
            own_id = "hand" not in what and "flow" not in what and "key" not in what
            assert own_id == (state.trace_id.encode() == case[0]), what
        assert_projection_is_the_fold(rig)


def _check_letter(rig: Rig, what: str, original: Record, letter: Record) -> None:
    """Raw key, value and headers; then where it came from and why it failed."""
    assert (letter.key, letter.value) == (original.key, original.value), what
    count = len(original.headers)
    assert letter.headers[:count] == original.headers, what
    told = dict(letter.headers[count:])
    assert told[h.DLQ_TOPIC] == rig.topic("work").encode(), what
    assert told[h.DLQ_PARTITION] == b"%d" % original.partition, what
    assert told[h.DLQ_GROUP] == rig.group("work").encode(), what
    assert int(told[h.DLQ_DELIVERY_COUNT] or b"") >= 1, what
    assert told[h.DLQ_ERROR] == b"bad_record", what
    assert told[h.DLQ_STAGE] == b"work", what
    assert told[h.DLQ_TIMESTAMP] == b"%d" % original.timestamp_ms, what
    assert is_job_id((told[h.DLQ_JOB] or b"").decode()), what
    assert len((told[h.DLQ_MESSAGE] or b"").decode()) > 20, what


def test_records_that_only_look_odd_are_jobs_like_any_other(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        _put_with_neighbours(rig, [(key, b'{"n": 6}', headers) for key, headers in ODD.values()])
        rig.worker("work", "finish", "projector")
        rig.wait_drained("work", "finish")
        _assert_neighbours_done(rig, len(ODD))
        assert_no_step_twice(rig)
        assert rig.dead_letters("work") == []
        by_offset = {_coordinates(s)[2]: s for s in rig.states() if s.stage == "work"}
        results = {r.job for r in rig.records("done")}
        odd = [r for r in rig.records("work") if r.value != GOOD]
        for (what, (key, _)), record in zip(ODD.items(), odd, strict=True):
            state = by_offset[record.offset]
            assert state.trace_id in results, what
            own_id = is_job_id((key or b"").decode(errors="replace")) and b"/" not in (key or b"")
            assert own_id == (key is not None and state.trace_id == key.decode(errors="replace"))
            assert (state.link is not None) == (
                what in ("foreign traceparent", "broken traceparent")
            )
        links = {s.link for s in rig.states()}
        assert FOREIGN.decode() in links
        assert_projection_is_the_fold(rig)


def test_a_null_value_is_no_job_and_the_offset_moves_on(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        for n in range(10):
            rig.put("work", job_id(n).encode(), None, partition=0)
            rig.put("work", job_id(100 + n).encode(), GOOD, partition=0)
        rig.put("work", None, None, partition=0)
        rig.flush()
        rig.worker("work")
        rig.wait_drained("work")
        assert {s.trace_id for s in rig.states()} == {job_id(100 + n) for n in range(10)}
        assert len(rig.records("finish")) == 10
        assert rig.dead_letters("work") == []


def test_a_faulty_hand_off_does_not_speak_for_the_job_whose_key_it_bears(
    settings: Settings, tmp_path: Path
) -> None:
    """Its flow or step is not ours, so neither is the step that it would write."""
    with Rig(settings, tmp_path) as rig:
        rig.worker()
        ids = rig.submit([Job(n=n) for n in range(4)])
        rig.wait(lambda: rig.finished() == 4, "all jobs are on the sink")
        forged = [
            [OURS[0], (h.SEQ, b"two")],
            [OURS[0], (h.SEQ, b"0")],
            [(h.FLOW, b"mail"), OURS[1]],
            [OURS[1]],
        ]
        for key, headers in zip(ids, forged, strict=True):
            rig.put("work", key.encode(), GOOD, headers)
        rig.flush()
        rig.wait_drained()
        assert_no_step_twice(rig)
        assert len(rig.dead_letters("work")) == 4
        steps = steps_by_job(rig.states())
        for key in ids:
            assert [s.status.value for s in steps[key]] == ["running", "running", "done"]
        assert_projection_is_the_fold(rig)


def test_a_handler_that_fails_is_retried_and_then_dead_lettered_with_its_reason(
    settings: Settings, tmp_path: Path
) -> None:
    faults = {
        "raise": (3, "handler_failed", "ValueError: job 0 always fails"),
        "unprintable": (3, "handler_failed", "ValueError: half a pair"),
        "speechless": (3, "handler_failed", "Speechless: (its text cannot be had)"),
        "stubborn": (3, "handler_failed", "never"),
        "reject": (1, "rejected", "not wanted"),
        "long reject": (1, "rejected", "no no no"),
    }
    place = {fault: n for n, fault in enumerate(faults)}
    with Rig(settings, tmp_path, partitions=1) as rig:
        for fault in faults:
            rig.hand_off("work", [(job_id(place[fault]), 1, Job(n=0, fault=fault))])
            rig.hand_off("work", [(_neighbour(place[fault]), 1, Job(n=5))])
        rig.hand_off("work", [(job_id(99), 1, Job(n=0, fault="retry"))])
        rig.worker("work", "projector")
        rig.wait_drained("work")
        last = {i: states[-1] for i, states in steps_by_job(rig.states()).items()}
        for fault, (attempts, kind, reason) in faults.items():
            state = last[job_id(place[fault])]
            assert (state.status, state.attempts) == (Status.FAILED, attempts), fault
            assert state.error is not None
            assert state.error.kind == kind
            assert reason in state.error.message
            assert last[_neighbour(place[fault])].status is Status.RUNNING
        assert (last[job_id(99)].status, last[job_id(99)].attempts) == (Status.RUNNING, 2)
        letters = {(r.header(h.DLQ_JOB) or b"").decode(): r for r in rig.dead_letters("work")}
        assert set(letters) == {job_id(place[fault]) for fault in faults}
        for letter in letters.values():
            (letter.header(h.DLQ_MESSAGE) or b"").decode()
        assert_projection_is_the_fold(rig)
