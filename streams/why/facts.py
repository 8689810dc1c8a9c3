"""The facts of one job, as far as they bear on why it does not move. Values only.

Times are Postgres' clock unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from schemas.state import JobError, Status
from streams.control import Order
from streams.deadletter.actions import Acted
from streams.deadletter.letters import Place
from streams.state.forks import Branch, Join, Obstacle
from streams.state.runs import Run
from streams.state.views import Effect


@dataclass(frozen=True, slots=True)
class State:
    """The job's last committed step. `projected`: Postgres shows it; otherwise only job-state."""

    job: str
    flow: str
    stage: str
    status: Status
    seq: int
    attempts: int
    to: tuple[str, ...]
    error: JobError | None
    wakes_at: datetime | None
    #: By the clock of the worker that did the step.
    updated_at: datetime
    projected: bool = True


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """The latest row of one slot in `workers`: an agent in a process, as it last told of itself."""

    slot: int
    incarnation: str
    pid: int
    host: str
    seen_at: datetime
    ended_at: datetime | None
    clean: bool | None
    paused: str | None
    paused_since: datetime | None
    #: See `streams.runtime.account`.
    account: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Started:
    """A row of the journal: the record's handler was started `starts` times and, but perhaps for
    the last one, each time the process died."""

    starts: int
    slot: int
    incarnation: str
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Queued:
    """The job's live record in a stage's topic, and what stands between it and its run.

    `offset` is None when so many lie before it that it was not reached: `ahead` is then the least.
    """

    stage: str
    topic: str
    partition: int
    offset: int | None
    #: The step that it is to do; 1: it is a submission.
    step: int
    #: When it was written, by the clock of its writer.
    written_at: datetime | None
    #: Committed offset of the stage's group there; None: it has none.
    head: int | None
    #: End of the partition for readers of committed records.
    end: int
    #: Records before it that are not finished, by the offset map.
    ahead: int
    #: Offsets per second that the group finishes there; None if that was not measured.
    per_s: float | None
    #: Slot of the member that owns the partition; None: nobody does; -1: it is no worker of ours.
    owner: int | None
    #: Of the topic; members of the group, and its state as Kafka spells it.
    partitions: int
    members: int
    group_state: str
    workers: Sequence[WorkerRow] = ()
    started: Started | None = None

    @property
    def place(self) -> str:
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.topic}[{self.partition}]{at}"

    @property
    def owner_row(self) -> WorkerRow | None:
        """What the owner says of itself. Others may have declared it dead: a member it is still."""
        return next((w for w in self._of_owner() if w.clean is not True), None)

    @property
    def owner_ended(self) -> WorkerRow | None:
        """The owner, if its process has stopped: its session has not expired yet."""
        return next((w for w in self._of_owner() if w.clean is True), None)

    def _of_owner(self) -> list[WorkerRow]:
        return [w for w in self.workers if w.slot == self.owner]


@dataclass(frozen=True, slots=True)
class LetterFacts:
    """The job's dead letter of its last step, and what people did about it."""

    place: Place
    kind: str
    message: str
    #: When it was written, by the clock of its writer.
    at: datetime
    actions: tuple[Acted, ...] = ()


@dataclass(frozen=True, slots=True)
class TimerFacts:
    """`due_at` of the pending row, None if there is none. `unread`: offsets of the timers topic, in
    the job's partition, that nobody has stored yet: the timer may be among them."""

    due_at: datetime | None
    refused: str | None
    unread: int
    workers: Sequence[WorkerRow] = ()


@dataclass(frozen=True, slots=True)
class ForkFacts:
    """What a job that waits for branches waits for. `join` is None while its agent has not read of
    the fork; `named` are the first branches without a result, `found` what all of those are at.

    `agent` is the partition of the join topic that the job's records lie in, and who works there;
    `timers` are those that keep its deadline, if it has one.
    """

    join: Join | None
    named: tuple[Branch, ...] = ()
    found: tuple[Obstacle, ...] = ()
    agent: Queued | None = None
    timers: Sequence[WorkerRow] = ()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The run that a job waits in: `calls` are the first of the `called` that have not come."""

    run: Run
    calls: tuple[Branch, ...] = ()
    called: int = 0
    agent: Queued | None = None
    timers: Sequence[WorkerRow] = ()


@dataclass(frozen=True, slots=True)
class Looked:
    """A topic that was searched for an unknown job: `records` past its group's positions (or the
    projection's). `lows` is where its partitions begin now: what lay before has expired."""

    topic: str
    records: int
    lows: tuple[int, ...]
    #: False: there are more than were read.
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """All that `explain` looks at. Without `state` and `queued` nobody knows the job."""

    #: The job's id; the prefix that was asked for if nobody knows it.
    job: str
    now: datetime
    #: A worker that was not heard of for so long counts as lost.
    lost_s: float
    state: State | None = None
    #: Flow of a submission that has no state yet.
    flow: str = ""
    queued: Queued | None = None
    letter: LetterFacts | None = None
    effects: Sequence[Effect] = ()
    timer: TimerFacts | None = None
    fork: ForkFacts | None = None
    run: RunFacts | None = None
    looked: Sequence[Looked] = ()
    #: Offsets between the projection and the end of job-state, where the job's states lie.
    behind: int = 0
    #: False: there are more states than were read, and newer ones may be of the job.
    behind_read: bool = True
    projectors: Sequence[WorkerRow] = field(default=())
    #: Who has cancelled the job, and who has paused the stage that its record lies before.
    cancel: Order | None = None
    pause: Order | None = None
