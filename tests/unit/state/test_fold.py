"""The fold: any split and order of the log gives the same jobs; bad records are named, not lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.state import JobState, Status
from streams.postgres import array_literal
from streams.state.fold import Rejected, StateRecord, Step, fold, merge, parse
from tests.unit.state.records import TOPIC_ID, job_id, record, state


def broken(**changes: Any) -> bytes:
    """A valid state's JSON with some of its fields replaced."""
    wire = json.loads(state(job_id(0), 1).model_dump_json(by_alias=True))
    return json.dumps(wire | changes).encode()


def accepted(value: bytes) -> Step:
    step = parse(record(value, key=job_id(0).encode()), value)
    assert isinstance(step, Step)
    return step


def jobs_of(batches: Sequence[Sequence[StateRecord]]) -> dict[str, Step]:
    """What a projection holds after `batches`: the guard by seq, as the SQL has it."""
    jobs: dict[str, Step] = {}
    for batch in batches:
        for step in fold(batch).last.values():
            merge(jobs, step)
    return jobs


@st.composite
def logs(draw: st.DrawFn) -> list[StateRecord]:
    """Some jobs' steps, repeats among them, in any order."""
    steps = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=40))
    return [record(state(job_id(job), seq), n) for n, (job, seq) in enumerate(steps)]


@given(logs(), st.data())
def test_any_split_and_order_of_the_log_gives_the_same_jobs(
    log: list[StateRecord], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(log))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    batches = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(shuffled)], strict=True)]
    whole, split = jobs_of([log]), jobs_of(batches)
    # A step that was written twice stands at either place: all but the place must agree.
    assert {k: v[3:] for k, v in whole.items()} == {k: v[3:] for k, v in split.items()}
    assert {k: v.seq for k, v in whole.items()} == {
        job: max(s.seq for s in fold(log).steps if s.trace_id == job) for job in whole
    }


@given(logs())
def test_every_record_is_a_step_a_reject_or_a_tombstone(log: list[StateRecord]) -> None:
    log = [*log, record(None, 900, key=b"x"), record(b"{", 901)]
    folded = fold(log)
    assert len(folded.steps) == len(log) - 2
    assert [r.record.offset for r in folded.rejected] == [901]
    assert folded.tombstones == 1


def test_a_step_carries_every_field_of_its_state() -> None:
    source = state(
        job_id(3),
        2,
        status=Status.FAILED,
        error={"kind": "bad_record", "message": "no\0 subject"},
        usage={"tokens": 7},
        parent=job_id(1),
        shielded=job_id(1),
        link="00-aa-bb-01",
        wakesAt=datetime(2026, 1, 2, tzinfo=UTC),
    )
    step = fold([record(source, 17, partition=2, timestamp_ms=1_760_000_000_123)]).steps[0]
    assert source.timing is not None
    assert source.consumed is not None
    assert step._asdict() == {
        "topic_id": TOPIC_ID,
        "partition": 2,
        "offset": 17,
        "trace_id": job_id(3),
        "seq": 2,
        "flow": "mail",
        "stage": "enrich",
        "status": "failed",
        "attempts": 1,
        "data": json.dumps(source.data, separators=(",", ":")),
        "error": '{"kind":"bad_record","message":"no\\\\0 subject"}',
        "usage": '{"tokens":7}',
        "link": "00-aa-bb-01",
        "worker": "0.1f",
        "consumed_topic": "mail.x",
        "consumed_topic_id": TOPIC_ID,
        "consumed_partition": 0,
        "consumed_offset": 2,
        **source.timing.model_dump(),
        "committed_us": 1_760_000_000_123_000,
        "wakes_at": datetime(2026, 1, 2, tzinfo=UTC),
        "parent": job_id(1),
        "shielded": job_id(1),
        "handed_to": ("act",),
        "updated_at": source.updated_at,
    }


def test_payloads_keep_large_numbers_nul_characters_and_infinities() -> None:
    text = rb'{"n": %d, "nul": "a\u0000b", "far": 1e999}' % 2**70
    step = accepted(broken().replace(b'"data": {', b'"data": %b, "x": {' % text))
    assert json.loads(step.data or "") == {"n": 2**70, "nul": "a\0b", "far": "Infinity"}


BAD: dict[str, tuple[bytes, str]] = {
    "is not JSON": (b"\xff{", "Invalid JSON"),
    "is empty": (b"", "Invalid JSON"),
    "is no object": (b"[]", "Input should be an object"),
    "lacks fields": (b"{}", "traceId: Field required"),
    "has an unknown status": (broken(status="happy"), "status: "),
    "begins at seq 0": (broken(seq=0), "seq: "),
    "is of a later version": (broken(v=2), "v: this version is not known"),
    "has a bad id": (broken(traceId="0" * 32), "traceId: not a job id"),
    "has another job's key": (broken(traceId=job_id(7)), "key is not its traceId"),
    "has no time zone": (broken(updatedAt="2026-01-01T00:00:00"), "updatedAt: has no time zone"),
    "wakes in no time zone": (broken(wakesAt="2026-01-01T00:00:00"), "wakesAt: has no time zone"),
    "has a huge seq": (broken(seq=2**31), "out of range"),
    "has huge attempts": (broken(attempts=2**31), "out of range"),
    "consumed a negative partition": (
        broken(consumed={"topic": "t", "topicId": str(TOPIC_ID), "partition": -1, "offset": 0}),
        "out of range",
    ),
    "consumed a huge offset": (
        broken(consumed={"topic": "t", "topicId": str(TOPIC_ID), "partition": 0, "offset": 2**63}),
        "consumed: out of range",
    ),
    "was born after the year 9999": (
        broken(
            timing={
                "bornUs": 2**62,
                "producedUs": 1,
                "polledUs": 1,
                "startedUs": 1,
                "finishedUs": 1,
            }
        ),
        "timing: not epoch microseconds",
    ),
    "has a NUL in a name": (broken(stage="a\0b"), "NUL"),
    "has a NUL in a target": (broken(to=["a\0b"]), "NUL"),
    "has a NUL where a UUID belongs": (
        broken(consumed={"topic": "t", "topicId": "\0", "partition": 0, "offset": 0}),
        "consumed.topicId",
    ),
    "is nested too deep": (broken(data=json.loads("[" * 300 + "]" * 300)), "recursion"),
}


@pytest.mark.parametrize(("value", "reason"), BAD.values(), ids=BAD.keys())
def test_a_record_is_rejected_with_a_reason_when_it(value: bytes, reason: str) -> None:
    given_record = record(value, 5, key=job_id(0).encode())
    rejected = parse(given_record, value)
    assert isinstance(rejected, Rejected)
    assert rejected.record is given_record
    assert reason in rejected.reason
    assert "\0" not in rejected.reason


def test_a_reason_never_quotes_the_payload() -> None:
    value = broken(seq="confidential", updatedAt="confidential", status="confidential")
    rejected = parse(record(value), value)
    assert isinstance(rejected, Rejected)
    assert "confidential" not in rejected.reason


def test_a_record_without_a_key_is_rejected() -> None:
    source = state(job_id(0), 1)
    assert [r.reason for r in fold([record(source, key=None)]).rejected] == [
        "the record's key is not its traceId"
    ]


@pytest.mark.parametrize("timestamp_ms", [-1, 2**60])
def test_a_record_with_an_impossible_timestamp_is_rejected(timestamp_ms: int) -> None:
    (rejected,) = fold([record(state(job_id(0), 1), timestamp_ms=timestamp_ms)]).rejected
    assert rejected.reason == "the record's timestamp is out of range"


@given(st.binary(max_size=200))
def test_no_bytes_make_the_fold_raise(value: bytes) -> None:
    folded = fold([record(value)])
    assert len(folded.rejected) + len(folded.steps) == 1


def test_a_state_without_optional_fields_is_a_step() -> None:
    bare = JobState.model_validate(
        {
            "traceId": job_id(0),
            "flow": "f",
            "stage": "s",
            "status": "done",
            "seq": 1,
            "attempts": 0,
            "updatedAt": "2026-01-01T00:00:00Z",
        }
    )
    step = fold([record(bare)]).steps[0]
    assert (step.data, step.born_us, step.consumed_topic, step.handed_to) == (None, None, None, ())


def test_text_arrays_are_spelled_as_postgres_reads_them() -> None:
    assert array_literal(()) == "{}"
    assert array_literal(["act", 'a"b', "c\\d", "", "e,f"]) == '{"act","a\\"b","c\\\\d","","e,f"}'
