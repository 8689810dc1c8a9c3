"""What the queries return: jobs, hops, effects and counts as frozen values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from schemas.state import Coordinates, HopTiming, JobError, Status


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its last committed step left it."""

    trace_id: str
    flow: str
    stage: str
    status: Status
    seq: int
    attempts: int
    data: Any
    error: JobError | None
    parent: str | None
    worker: str | None
    usage: dict[str, Any] | None
    to: tuple[str, ...]
    born_at: datetime | None
    updated_at: datetime
    #: When the timer of a waiting job is due; None for one that waits for a person.
    wakes_at: datetime | None = None

    @property
    def cursor(self) -> tuple[datetime, str]:
        """Where the page after this job begins."""
        return self.updated_at, self.trace_id


@dataclass(frozen=True, slots=True)
class Hop:
    """One committed step. `committed_us` is its record's Kafka timestamp, which is in whole ms."""

    trace_id: str
    seq: int
    flow: str
    stage: str
    status: Status
    attempts: int
    to: tuple[str, ...]
    data: Any
    error: JobError | None
    usage: dict[str, Any] | None
    link: str | None
    worker: str | None
    #: The record that the step consumed.
    consumed: Coordinates | None
    timing: HopTiming | None
    committed_us: int
    updated_at: datetime
    #: Place of the step's own record in `job-state`.
    topic_id: UUID
    partition: int
    offset: int
    wakes_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of the ledger. `settled_at` is None while the effect is claimed or in doubt."""

    key: str
    trace_id: str
    flow: str
    stage: str
    name: str
    status: str
    idempotent: bool
    calls: int
    result: Any
    note: str | None
    claimed_at: datetime
    leased_until: datetime
    settled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs stand at `stage` in `status`."""

    flow: str
    stage: str
    status: Status
    jobs: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from a job's birth to the commit of its last step; None where no job has ended."""

    jobs: int
    p50_s: float | None
    p95_s: float | None


Row = dict[str, Any]


def job_of(row: Row) -> Job:
    """A row of `jobs` with `data` and `usage` as JSON text."""
    return Job(
        trace_id=row["trace_id"],
        flow=row["flow"],
        stage=row["stage"],
        status=Status(row["status"]),
        seq=row["seq"],
        attempts=row["attempts"],
        data=parsed(row["data"]),
        error=_error(row["error"]),
        parent=row["parent"],
        worker=row["worker"],
        usage=parsed(row["usage"]),
        to=tuple(row["handed_to"]),
        born_at=row["born_at"],
        updated_at=row["updated_at"],
        wakes_at=row["wakes_at"],
    )


def hop_of(row: Row) -> Hop:
    """A row of `job_history` with `data` and `usage` as JSON text."""
    return Hop(
        trace_id=row["trace_id"],
        seq=row["seq"],
        flow=row["flow"],
        stage=row["stage"],
        status=Status(row["status"]),
        attempts=row["attempts"],
        to=tuple(row["handed_to"]),
        data=parsed(row["data"]),
        error=_error(row["error"]),
        usage=parsed(row["usage"]),
        link=row["link"],
        worker=row["worker"],
        consumed=_consumed(row),
        timing=_timing(row),
        committed_us=row["committed_us"],
        updated_at=row["updated_at"],
        topic_id=row["topic_id"],
        partition=row["partition"],
        offset=row["offset"],
        wakes_at=row["wakes_at"],
    )


def effect_of(row: Row) -> Effect:
    """A row of `effects` with `result` as JSON text."""
    return Effect(**{**row, "result": parsed(row["result"])})


def parsed(text: str | None) -> Any:
    """JSON text as a value; None stays None."""
    # The standard library's parser keeps integers of any size.
    return None if text is None else json.loads(text)


def _error(row: Row | None) -> JobError | None:
    return None if row is None else JobError.model_validate(row)


def _consumed(row: Row) -> Coordinates | None:
    if row["consumed_topic_id"] is None:
        return None
    return Coordinates(
        topic=row["consumed_topic"],
        topic_id=row["consumed_topic_id"],
        partition=row["consumed_partition"],
        offset=row["consumed_offset"],
    )


def _timing(row: Row) -> HopTiming | None:
    if row["born_us"] is None:
        return None
    return HopTiming(**{name: row[name] for name in HopTiming.model_fields})
