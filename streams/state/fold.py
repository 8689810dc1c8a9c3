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
from streams.positions import LogRecord

_INT4_MAX: Final = 2**31 - 1
_INT8_MAX: Final = 2**63 - 1
#: Last microsecond of the year 9999.
_TIME_MAX_US: Final = 253_402_300_799_999_999


class StateRecord(LogRecord):
    """One record of `job-state` as it lies in the topic."""

    __slots__ = ()


class Step(NamedTuple):
    """One committed step as a row: the columns of `job_history`, `parent` and `shielded`.

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
    wakes_at: datetime | None
    parent: str | None
    shielded: str | None
    handed_to: tuple[str, ...]
    updated_at: datetime


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
    #: Keys of the tombstones, in the order read.
    bare: list[bytes | None] = field(default_factory=list)

    @property
    def tombstones(self) -> int:
        return len(self.bare)


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
            folded.bare.append(record.key)
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
    reason = _fault(record, value, state)
    return _row(record, state) if reason is None else Rejected(record, reason)


def _row(record: StateRecord, state: JobState) -> Step:
    consumed, timing = state.consumed, state.timing
    # Positional arguments: keywords would cost as much as the rest of this function.
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
        consumed.topic if consumed else None,
        consumed.topic_id if consumed else None,
        consumed.partition if consumed else None,
        consumed.offset if consumed else None,
        timing.born_us if timing else None,
        timing.produced_us if timing else None,
        timing.polled_us if timing else None,
        timing.started_us if timing else None,
        timing.finished_us if timing else None,
        record.timestamp_ms * 1000,
        state.wakes_at,
        state.parent,
        state.shielded,
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


def _fault(record: StateRecord, value: bytes, state: JobState) -> str | None:
    """Why a well-formed state cannot be a row: the last gate, so Postgres never refuses a batch."""
    if state.v != VERSION:
        return "v: this version is not known to this program; upgrade the projector"
    if not is_job_id(state.trace_id):
        return "traceId: not a job id"
    if record.key != state.trace_id.encode():
        return "the record's key is not its traceId"
    for name, moment in (("updatedAt", state.updated_at), ("wakesAt", state.wakes_at)):
        if moment is not None and moment.tzinfo is None:
            return f"{name}: has no time zone"
    # In JSON a NUL is always escaped: one search spares the look at each name.
    if b"\\u0000" in value and _names_hold_nul(state):
        return "a name holds a NUL character"
    return _out_of_range(record, state)


def _names_hold_nul(state: JobState) -> bool:
    topic = state.consumed.topic if state.consumed else None
    names = (state.flow, state.stage, state.link, state.worker, state.parent, topic, *state.to)
    names += (state.shielded,)
    return any("\0" in name for name in names if name is not None)


def _out_of_range(record: StateRecord, state: JobState) -> str | None:
    if state.seq > _INT4_MAX or state.attempts > _INT4_MAX:
        return "seq or attempts: out of range"
    if (at := state.consumed) is not None and not (
        0 <= at.partition <= _INT4_MAX and 0 <= at.offset <= _INT8_MAX
    ):
        return "consumed: out of range"
    if not 0 <= record.timestamp_ms * 1000 <= _TIME_MAX_US:
        return "the record's timestamp is out of range"
    if (t := state.timing) is not None:
        times = (t.born_us, t.produced_us, t.polled_us, t.started_us, t.finished_us)
        if min(times) < 0 or max(times) > _TIME_MAX_US:
            return "timing: not epoch microseconds"
    return None
