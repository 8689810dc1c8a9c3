"""From `job-state` records to rows: parse, fold by seq, report what is no state. Pure.

A tombstone (null value) is no job. A record that is no valid `JobState` never stops the fold: it is
returned with its coordinates and a reason, and never quoted in a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import to_json

from schemas.ids import is_job_id
from schemas.state import VERSION, JobError, JobState

_INT4_MAX: Final = 2**31 - 1
_INT8_MAX: Final = 2**63 - 1
#: Last microsecond of the year 9999.
_TIME_MAX_US: Final = 253_402_300_799_999_999


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One record of `job-state` as it lies in the topic; `timestamp_ms` is Kafka's."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Step(NamedTuple):
    """One committed step as a row: the columns of `job_history`, and `parent`.

    `data`, `error` and `usage` are JSON text; times in `_us` are epoch microseconds.
    """

    topic_id: UUID
    partition: int
    offset: int
    trace_id: str
    seq: int
    flow: str
    stage: str
    status: str
    attempts: int
    data: str | None
    error: str | None
    usage: str | None
    link: str | None
    worker: str | None
    consumed_topic: str | None
    consumed_topic_id: UUID | None
    consumed_partition: int | None
    consumed_offset: int | None
    born_us: int | None
    produced_us: int | None
    polled_us: int | None
    started_us: int | None
    finished_us: int | None
    committed_us: int
    parent: str | None
    handed_to: tuple[str, ...]
    updated_at: datetime


_TIMES: Final = slice(Step._fields.index("born_us"), Step._fields.index("committed_us") + 1)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no valid state, complete, and why."""

    record: StateRecord
    reason: str


@dataclass(slots=True)
class Folded:
    """A batch, folded: all `steps` in the order read, the `last` of each job, and the rest."""

    steps: list[Step] = field(default_factory=list)
    last: dict[str, Step] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    tombstones: int = 0


def merge(last: dict[str, Step], step: Step) -> None:
    """Let `step` stand for its job unless the same or a later one is there already.

    The order of calls does not matter, since (traceId, seq) names one step.
    """
    known = last.get(step.trace_id)
    if known is None or step.seq > known.seq:
        last[step.trace_id] = step


def fold(records: Iterable[StateRecord]) -> Folded:
    """Parse and fold `records`; raises nothing on account of what is in them."""
    folded = Folded()
    for record in records:
        if record.value is None:
            folded.tombstones += 1
            continue
        step = parse(record, record.value)
        if isinstance(step, Rejected):
            folded.rejected.append(step)
        else:
            folded.steps.append(step)
            merge(folded.last, step)
    return folded


def parse(record: StateRecord, value: bytes) -> Step | Rejected:
    """The row of one record, or why there is none."""
    try:
        state = JobState.model_validate_json(value)
    except ValidationError as e:
        # Three faults tell enough. No input is quoted; NUL can come in by pydantic's own words.
        faults = [f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors()[:3]]
        return Rejected(record, "; ".join(faults).lstrip(": ").replace("\0", "\\0"))
    step = _row(record, state)
    reason = _fault(record, state, step)
    return step if reason is None else Rejected(record, reason)


def _row(record: StateRecord, state: JobState) -> Step:
    consumed, timing = state.consumed, state.timing
    source = (
        (consumed.topic, consumed.topic_id, consumed.partition, consumed.offset)
        if consumed
        else (None, None, None, None)
    )
    times = (
        (
            timing.born_us,
            timing.produced_us,
            timing.polled_us,
            timing.started_us,
            timing.finished_us,
        )
        if timing
        else (None, None, None, None, None)
    )
    return Step(
        record.topic_id,
        record.partition,
        record.offset,
        state.trace_id,
        state.seq,
        state.flow,
        state.stage,
        state.status.value,
        state.attempts,
        _json(state.data),
        _error(state.error),
        _json(state.usage),
        state.link,
        state.worker,
        *source,
        *times,
        record.timestamp_ms * 1000,
        state.parent,
        state.to,
        state.updated_at,
    )


def _json(value: object) -> str | None:
    # JSON has no infinity: one that came in as 1e999 stays visible as a string.
    return None if value is None else to_json(value, inf_nan_mode="strings").decode()


def _error(error: JobError | None) -> str | None:
    # The column is jsonb, for grouping, which takes no NUL; exception texts may hold one.
    if error is None:
        return None
    return to_json({k: v.replace("\0", "\\0") for k, v in error.model_dump().items()}).decode()


def _fault(record: StateRecord, state: JobState, step: Step) -> str | None:
    """Why a well-formed state cannot be a row: the last gate, so Postgres never refuses a batch."""
    if state.v != VERSION:
        return f"v: version {state.v} is not known to this program, which reads {VERSION}"
    if not is_job_id(state.trace_id):
        return "traceId: not a job id"
    if record.key != state.trace_id.encode():
        return "the record's key is not its traceId"
    if state.updated_at.tzinfo is None:
        return "updatedAt: has no time zone"
    numbers = [n for n in (step.seq, step.attempts, step.consumed_partition) if n is not None]
    if min(numbers) < 0 or max(numbers) > _INT4_MAX:
        return "seq, attempts or consumed.partition: out of range"
    if step.consumed_offset is not None and not 0 <= step.consumed_offset <= _INT8_MAX:
        return "consumed.offset: out of range"
    times = [t for t in step[_TIMES] if t is not None]
    if min(times) < 0 or max(times) > _TIME_MAX_US:
        return "timing: not epoch microseconds"
    texts = (step.flow, step.stage, step.link, step.worker, step.consumed_topic, step.parent)
    if "\0" in "".join(filter(None, (*texts, *step.handed_to))):
        return "a name holds a NUL character"
    return None
