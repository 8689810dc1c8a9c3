"""Makes `job-state` records for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from schemas.state import JobState, Status
from streams.state.fold import StateRecord

TOPIC = "job-state"
TOPIC_ID = UUID("5b1f7c1e-0000-4000-8000-000000000001")
STAGES = ("classify", "enrich", "act")


def job_id(n: int) -> str:
    return f"{n + 1:032x}"


def state(job: str, seq: int, **changes: Any) -> JobState:
    """Step `seq` of a job of three steps; `changes` by wire name."""
    last = seq >= len(STAGES)
    fields: dict[str, Any] = {
        "traceId": job,
        "flow": "mail",
        "stage": STAGES[min(seq, len(STAGES)) - 1],
        "status": Status.DONE if last else Status.RUNNING,
        "seq": seq,
        "data": {"step": seq, "of": job},
        "attempts": 1,
        "updatedAt": datetime.fromtimestamp(1_760_000_000 + seq, UTC),
        "to": () if last else (STAGES[seq],),
        "timing": {
            name: 1_760_000_000_000_000 + seq * 1_000 + n
            for n, name in enumerate(
                ("bornUs", "producedUs", "polledUs", "startedUs", "finishedUs")
            )
        },
        "worker": "0.1f",
        "consumed": {"topic": "mail.x", "topicId": TOPIC_ID, "partition": 0, "offset": seq},
    }
    return JobState.model_validate(fields | changes)


def record(
    value: JobState | bytes | None,
    offset: int = 0,
    *,
    key: bytes | None = b"",
    partition: int = 0,
    timestamp_ms: int = 1_760_000_100_000,
) -> StateRecord:
    """`value` at a place of the topic, under its own key unless another one is given."""
    if isinstance(value, JobState):
        key = value.trace_id.encode() if key == b"" else key
        value = value.model_dump_json(by_alias=True).encode()
    return StateRecord(TOPIC, TOPIC_ID, partition, offset, timestamp_ms, key, value)
