"""`Run`: what an orchestration is given, and what its commands are awaited by.

The function is run again from its beginning each time something happens, over a journal of what
has happened until then. So it must depend on nothing but its input and its run: no clock, no dice,
no input or output of its own.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, overload
from uuid import NAMESPACE_URL, uuid5

from pydantic import BaseModel, TypeAdapter, ValidationError

from schemas.state import JobError, Status
from streams.errors import BadRecord
from streams.outcome import MAX_WAIT
from streams.signals import Signal

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
M = TypeVar("M", bound=BaseModel)

CALL: Final = "call"
SLEEP: Final = "sleep"
SIGNAL: Final = "signal"


class CallFailed(Exception):
    """A call of the run ended without a result: the job `job_id` at `stage` is `failed` or
    `cancelled`, for `error`. Its dead letter stays; a redrive of it does not change the run."""

    def __init__(self, job_id: str, stage: str, status: Status, error: JobError) -> None:
        super().__init__(f"The call of {stage} ({job_id}) {status.value}: {error.message}")
        self.job_id, self.stage, self.status, self.error = job_id, stage, status, error


class TimedOut(Exception):
    """The signal `name` had not come in time."""

    def __init__(self, name: str) -> None:
        super().__init__(f"signal {name} had not come in time")
        self.name = name


class RunCancelled(Exception):
    """Somebody cancelled the job. Raised where the run waits; after it the run may go on for as
    long as its compensation takes, and ends as cancelled if it lets this pass."""

    def __init__(self, by: str, reason: str) -> None:
        super().__init__(f"cancelled by {by}" + (f": {reason}" if reason else ""))
        self.by, self.reason = by, reason


class NamedStage(Protocol):
    """Of a stage, what a call needs."""

    @property
    def name(self) -> str: ...
    @property
    def input(self) -> type[BaseModel]: ...


class Command(NamedTuple):
    """What a run asks for: `n` is its place in the code's order. `name` is the stage that is
    called, or the signal; `due_us` (epoch) when it is over in any case."""

    n: int
    kind: str
    name: str
    due_us: int | None = None
    #: Of a call: the child's number, its payload, and whether it is made by a cancelled run.
    child: int | None = None
    model: BaseModel | None = None
    shielded: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


class Came(NamedTuple):
    """A command is over: as the `order`-th of what has happened, with a value or an error."""

    order: int
    value: Any = None
    error: Exception | None = None


class Issuer(Protocol):
    """What a run hands its commands to; see `streams.orchestration.execution`."""

    now_us: int
    cancelled: bool

    def issue(
        self, kind: str, name: str, due_us: int | None = None, model: BaseModel | None = None
    ) -> Command: ...
    def came(self, command: Command) -> Came | None:
        """How it ended, if it has."""
        ...

    def take(self, command: Command) -> Came:
        """The same, for good: a signal is then nobody else's."""
        ...


class Pending(Generic[T]):
    """A command under way. `await` it, now or later, once or often; it runs meanwhile."""

    def __init__(
        self, issuer: Issuer, command: Command, read: Callable[[Any], T] | None = None
    ) -> None:
        self._issuer, self.command, self._read = issuer, command, read
        self._taken: Came | None = None

    def __repr__(self) -> str:
        return f"<{self.command} ({self.command.n})>"

    @property
    def came(self) -> Came | None:
        """How it ended, None as long as it has not."""
        return self._taken or self._issuer.came(self.command)

    def result(self) -> T:
        """The value of one that is over. Raises what it ended with."""
        if self._taken is None:
            self._taken = self._issuer.take(self.command)
        if self._taken.error is not None:
            raise self._taken.error
        if self._read is not None:
            return self._read(self._taken.value)
        value: T = self._taken.value
        return value

    def __await__(self) -> Generator[Sequence[Pending[Any]], None, T]:
        while self.came is None:
            yield (self,)
        return self.result()


class _Gathered(Generic[T]):
    def __init__(self, members: Sequence[Pending[Any]]) -> None:
        self._members = members

    def __await__(self) -> Generator[Sequence[Pending[Any]], None, tuple[Any, ...]]:
        members = self._members
        for each in members:
            # One after the other: two that wait for signals of one name take two.
            while each.came is None:
                yield tuple(m for m in members if m.came is None)
            if each.command.kind == SIGNAL:
                _taken(each)
        return tuple(each.result() for each in members)


def _taken(pending: Pending[Any]) -> None:
    try:
        pending.result()
    except Exception:
        return  # raised again where all are there


class _FirstOf:
    def __init__(self, members: Sequence[Pending[Any]]) -> None:
        self._members = members

    def __await__(self) -> Generator[Sequence[Pending[Any]], None, Pending[Any]]:
        while True:
            over = [(came.order, each) for each in self._members if (came := each.came)]
            if over:
                return min(over, key=lambda pair: pair[0])[1]
            yield self._members


@dataclass(frozen=True, slots=True)
class RunId:
    """Which run: of the job `trace_id`, begun by its step `seq` at the orchestrator `stage`."""

    trace_id: str
    seq: int
    flow: str
    stage: str


class Run:
    """The run of one job. A command begins where it is made, not where it is awaited."""

    def __init__(self, issuer: Issuer, run_id: RunId) -> None:
        self._issuer, self._id = issuer, run_id
        self._dice: random.Random | None = None
        self._ids = 0

    @property
    def trace_id(self) -> str:
        """The job's id; its calls are the jobs `<trace_id>/<n>`."""
        return self._id.trace_id

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled: what it calls now is its compensation."""
        return self._issuer.cancelled

    @overload
    def call(
        self, stage: NamedStage | str, model: BaseModel, *, returns: type[M]
    ) -> Pending[M]: ...
    @overload
    def call(self, stage: NamedStage | str, model: BaseModel) -> Pending[Any]: ...
    def call(
        self,
        stage: NamedStage | str,
        model: BaseModel,
        *,
        returns: type[BaseModel] | None = None,
    ) -> Pending[Any]:
        """Hand `model` to `stage` as a job of its own; awaited, it gives what that job ended with
        (`Done(result)`, or what it handed to a sink): a `returns`, or else plain JSON.

        Raises `CallFailed` where it is awaited, if that job failed or was cancelled.
        """
        name = stage if isinstance(stage, str) else stage.name
        if not isinstance(stage, str) and not isinstance(model, stage.input):
            raise BadRecord(
                f"Run {self.trace_id} calls {name} with a {type(model).__name__}; it takes "
                f"{stage.input.__name__}."
            )
        command = self._issuer.issue(CALL, name, model=model)
        read = None if returns is None else _reader(returns, f"{self.trace_id}/{command.child}")
        return Pending(self._issuer, command, read)

    def sleep(self, delay: timedelta) -> Pending[None]:
        """Over once `delay` has passed; no worker need live meanwhile."""
        return Pending(self._issuer, self._issuer.issue(SLEEP, "", due_us=self._due(delay)))

    def signal(self, name: str, *, timeout: timedelta | None = None) -> Pending[Signal]:
        """The next signal `name` sent to this job (`handoff signal`), also one that came before it
        was asked for; nobody else gets it. Raises `TimedOut` where it is awaited, past `timeout`.
        """
        due_us = None if timeout is None else self._due(timeout)
        return Pending(self._issuer, self._issuer.issue(SIGNAL, name, due_us=due_us))

    @overload
    def gather(self, a: Pending[A], b: Pending[B], /) -> Awaitable[tuple[A, B]]: ...
    @overload
    def gather(
        self, a: Pending[A], b: Pending[B], c: Pending[C], /
    ) -> Awaitable[tuple[A, B, C]]: ...
    @overload
    def gather(self, *pending: Pending[T]) -> Awaitable[tuple[T, ...]]: ...
    def gather(self, *pending: Pending[Any]) -> Awaitable[tuple[Any, ...]]:
        """All results, in the order of the arguments, once all are over: if some failed, the first
        of them in that order is raised then, whichever came first."""
        return _Gathered(pending)

    def first_of(self, *pending: Pending[Any]) -> Awaitable[Pending[Any]]:
        """The one that is over first; `await` it for its value. The others stay under way."""
        if not pending:
            raise BadRecord(f"Run {self.trace_id} waits for the first of nothing.")
        return _FirstOf(pending)

    def now(self) -> datetime:
        """When what the run goes on with happened (UTC): the same however often it is run."""
        return datetime.fromtimestamp(self._issuer.now_us / 1e6, UTC)

    def random(self) -> float:
        """The next of the run's own random numbers, from 0 to 1."""
        if self._dice is None:
            self._dice = random.Random(f"{self.trace_id}:{self._id.seq}")  # noqa: S311 - no secret
        return self._dice.random()

    def id(self) -> str:
        """A new UUID, the same however often the function is run."""
        self._ids += 1
        return str(uuid5(NAMESPACE_URL, f"handoff:{self.trace_id}:{self._id.seq}:{self._ids}"))

    def _due(self, delay: timedelta) -> int:
        return self._issuer.now_us + round(min(max(delay, timedelta()), MAX_WAIT) / _US)


_US: Final = timedelta(microseconds=1)


def _reader(model: type[M], job_id: str) -> Callable[[Any], M]:
    def read(value: Any) -> M:
        try:
            return TypeAdapter(model).validate_python(value)
        except ValidationError as e:
            fault = e.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the whole"
            raise BadRecord(
                f"The result of {job_id} is no {model.__name__}: {where}: {fault['msg']}."
            ) from None

    return read
