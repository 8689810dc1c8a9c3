"""`JobState`: the value of every record on the `job-state` topic.

The wire spells fields in camelCase; times are epoch microseconds, `updatedAt` is ISO 8601 in UTC.
(traceId, seq) identifies a step: seq rises by one with each committed step.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

#: The stage of a join agent's steps, in a flow that forks; no other stage may have its name.
JOIN: Final = "join"

_ERROR_CHARS: Final = 2_000

#: Version of this type on the wire; old versions are upcast, never re-read by hope.
VERSION = 1


class Status(StrEnum):
    """Where a job stands after a step. The last three are terminal."""

    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (Status.DONE, Status.FAILED, Status.CANCELLED)


class _Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )


class Coordinates(_Wire):
    """Place of one record; the topic's UUID tells a topic from its namesake made later."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int


class HopTiming(_Wire):
    """The hop's own clock, epoch microseconds: queued, polled, working, waiting for the commit."""

    born_us: int
    produced_us: int
    polled_us: int
    started_us: int
    finished_us: int


class JobError(_Wire):
    """Why a job failed or was parked: `kind` is for grouping, `message` for people."""

    kind: str
    message: str


def job_error(kind: str, message: str) -> JobError:
    """An error as it can be written, whatever a handler put into it: bounded, and without halves
    of surrogate pairs."""
    return JobError(
        kind=kind.encode(errors="backslashreplace").decode(),
        message=message[:_ERROR_CHARS].encode(errors="backslashreplace").decode(),
    )


class Forked(_Wire):
    """What a step forked: children `first` to `first` + `expected` - 1, whose results go to the
    stage `join`. `digest` is a hash of what they were handed, to compare a replay by."""

    join: str
    first: int = Field(ge=0)
    expected: int = Field(ge=0)
    digest: str = ""


class RunStep(_Wire):
    """What a step did of the run that the orchestrator `stage`, or the wait of that stage, is:
    children from `first` on were called at the stages `calls`, `waits` says in words what else it
    began, `ended` that it is over. `digest` is a hash of what the children were handed."""

    stage: str
    first: int = Field(ge=0)
    calls: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    ended: bool = False
    digest: str = ""


class JobState(_Wire):
    """One committed step of one job."""

    v: int = VERSION
    trace_id: str
    flow: str
    #: The stage that did the step.
    stage: str
    status: Status
    seq: int = Field(ge=1)
    #: Output of the hop, the JSON that was handed on; None where there is none.
    data: Any = None
    #: Handler runs that this step took, and before it those that ended in a wait for a timer.
    attempts: int = Field(ge=0)
    updated_at: datetime
    #: Stages and sinks that the step handed to.
    to: tuple[str, ...] = ()
    parent: str | None = None
    #: Of a child's first step: the step of its parent that forked it.
    forked_at: int | None = None
    #: Of a step that forked: the job waits for the join of these children.
    fork: Forked | None = None
    #: Of a step of a run: the job waits for its calls, timers and signals, until it has ended.
    run: RunStep | None = None
    error: JobError | None = None
    #: When the timer of a waiting job is due; None for one that waits for a person.
    wakes_at: datetime | None = None
    timing: HopTiming | None = None
    usage: dict[str, Any] | None = None
    #: Slot and incarnation of the worker, `<slot>.<incarnation>`.
    worker: str | None = None
    #: The record that the step consumed.
    consumed: Coordinates | None = None
    #: A foreign `traceparent` that came with the record; shown as a span link.
    link: str | None = None
