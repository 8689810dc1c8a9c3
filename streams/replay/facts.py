"""What a replay works on: a record, the step that it led to, and the effects that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from schemas.state import JOIN, Forked, JobError, Status
from streams.joins import BranchRow
from streams.kafka import KafkaError, Record

Header = tuple[str, bytes | None]


class Spot(NamedTuple):
    """Coordinates of a record; the UUID tells a topic from its namesake made later."""

    topic_id: UUID
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A consumed record as a value: what the driver's message says, for any process."""

    topic_: str
    topic_id: UUID
    partition_: int
    offset_: int
    timestamp_ms: int
    key_: bytes | None
    value_: bytes | None
    headers_: tuple[Header, ...]

    @property
    def spot(self) -> Spot:
        return Spot(self.topic_id, self.partition_, self.offset_)

    @property
    def place(self) -> str:
        return f"{self.topic_}[{self.partition_}]@{self.offset_}"

    # The driver's message has methods (`streams.kafka.Record`).

    def topic(self) -> str:
        return self.topic_

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> list[tuple[str, bytes]] | None:
        # The driver's types say that no value is null; it gives them all the same.
        return list(self.headers_)  # type: ignore[arg-type]

    def timestamp(self) -> tuple[int, int]:
        return 1, self.timestamp_ms

    def error(self) -> KafkaError | None:
        return None

    def __len__(self) -> int:
        return len(self.value_ or b"")


def stored(record: Record, topic_id: UUID) -> StoredRecord:
    """Headers whose names are no UTF-8 cannot be had from the driver: there are none then."""
    try:
        headers = tuple(record.headers() or ())
    except (UnicodeDecodeError, ValueError):
        headers = ()
    return StoredRecord(
        record.topic(),
        topic_id,
        record.partition(),
        record.offset(),
        max(0, record.timestamp()[1]),
        record.key(),
        record.value(),
        headers,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What a record really led to: its row of `job_history`. `data` is JSON text."""

    job: str
    seq: int
    flow: str
    stage: str
    status: Status
    to: tuple[str, ...]
    data: str | None
    error: JobError | None
    committed_us: int
    #: The job has no later step at this stage: what effects it has there, this one asked for.
    is_last: bool

    @property
    def forked(self) -> bool:
        """Whether the step split its job, which then waits for the join, or began a run of it, or a
        wait."""
        return self.status is Status.WAITING and self.to == (JOIN,)


@dataclass(frozen=True, slots=True)
class KeptEffect:
    """A row of the ledger. `result` is JSON text; `fingerprint` is None where it was redacted."""

    key: str
    job: str
    stage: str
    name: str
    status: str
    fingerprint: str | None
    result: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """One record to run again at `stage`.

    Without a `step` there is nothing to compare with, and `because` says why; `skip` then tells
    that nothing ran in production either. `record` is None where it is gone; `place` names it.
    """

    flow: str
    stage: str
    place: str
    record: StoredRecord | None
    step: Step | None
    effects: tuple[KeptEffect, ...] = ()
    because: str = ""
    skip: bool = False
    #: The step is so old that the ledger may have been pruned: a missing effect tells nothing.
    pruned: bool = False
    #: What the step forked, where it did; None where that is not kept any more. Without a `digest`
    #: it is not known what the children were handed.
    fork: Forked | None = None
    #: What a join gave to the step, for a file; None: it is to be read from Postgres.
    branches: tuple[BranchRow, ...] | None = None
    #: Of a step that began a run, or a wait: what it waits for from the beginning, in words; None
    #: where it began none, or that is not kept any more.
    begun: tuple[str, ...] | None = None
