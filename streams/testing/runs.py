"""An orchestration played in memory: its calls are answered by a test, and time is skipped.

The same `Execution` as in production, over events that the test's own clock makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import orjson
from pydantic import BaseModel

from schemas.state import JobError, Status, job_error
from streams.errors import BadSetup
from streams.flow import Stage
from streams.orchestration.declare import Orchestration, orchestration_of
from streams.orchestration.execution import End, Event, Execution, Known
from streams.orchestration.run import CALL, Command, RunId
from streams.outcome import Done, Emit, Fork, Outcome, Reject, Retry, Wait
from streams.signals import Signal
from streams.testing.stages import TRACE_ID, job_context

#: When runs begin unless a test says otherwise.
STARTED: Final = datetime(2026, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: A run that asks for more in one test goes round in circles.
_MAX_EVENTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Takes:
    """An answer that comes `after` this long; others come at once."""

    after: timedelta
    answer: Any


#: What a call is answered by: a model or JSON, which is its result; an exception, `Reject` or
#: `JobError`, with which it fails; an outcome `Done` or `Emit`; a stage, whose handler is run once;
#: an orchestration, which is played; `Takes`; or a function, async or not, of the model, which
#: returns any of them.
Answer = Any


class SignalAt(NamedTuple):
    """A signal that is sent so long after the beginning."""

    after: timedelta
    name: str
    value: Any = None
    by: str = ""


@dataclass(frozen=True)
class Played:
    """How a run went.

    `status` is that of the job's step that ended it: `running` (handed on), `done`, `failed`,
    `cancelled`; `outcome` is what the function returned, None where `error` says why it did not.
    `commands` in words ("call score", "sleep", "signal approval"); `called` are the stages and
    models of its calls.
    """

    status: Status
    outcome: Outcome | None
    error: JobError | None
    commands: tuple[str, ...]
    called: tuple[tuple[str, BaseModel], ...]
    elapsed: timedelta

    @property
    def result(self) -> BaseModel | None:
        """The model that it ended with or handed on."""
        match self.outcome:
            case Emit(model=model) | Done(result=model):
                return model
        return None


async def play(
    orchestration: Stage[Any, Any],
    model: BaseModel,
    *,
    calls: Mapping[str, Answer] | None = None,
    signals: Iterable[tuple[Any, ...]] = (),
    cancel_at: timedelta | None = None,
    started: datetime = STARTED,
    trace_id: str = TRACE_ID,
) -> Played:
    """Play the run of one job to its end; no time passes but on its own clock.

    `calls` answers each call by the name of its stage (see `Answer`). `signals` are `SignalAt`s, or
    tuples like them. `cancel_at` cancels the job. Times are counted from the run's beginning.

    At its end the run is played again over what happened, as a worker does after a crash. Raises
    `BadSetup` if that asks for anything else, for a call without an answer, for a run that waits
    for what never comes, and for what parks a run in production.
    """
    its = orchestration_of(orchestration)
    if its is None:
        raise BadSetup(f"Stage {orchestration.name} is no orchestration: call it instead.")
    run_id = RunId(trace_id, 1, "test", orchestration.name)
    stand = _Stand(its, model, run_id, calls or {}, started)
    stand.at(timedelta(), Event("start", "", "", b"", 0))
    for n, each in enumerate(signals):
        sent = SignalAt(*each)
        signal = Signal(sent.name, sent.value, sent.by, started + sent.after)
        stand.at(sent.after, Event("signal", f"{n}", sent.name, signal.to_json(), 0))
    if cancel_at is not None:
        told = orjson.dumps({"by": "test", "reason": ""})
        stand.at(cancel_at, Event("cancel", "", "", told, 0))
    return await stand.play()


class _Stand:
    """One run, and what is still to happen to it."""

    def __init__(
        self,
        its: Orchestration,
        model: BaseModel,
        run_id: RunId,
        calls: Mapping[str, Answer],
        started: datetime,
    ) -> None:
        self._its, self._model, self._id, self._answers = its, model, run_id, calls
        self._started_us = _micros(started - _EPOCH)
        self._now_us = self._started_us
        self._coming: list[tuple[int, int, Event]] = []
        self._scheduled = 0
        self._seen: list[Event] = []

    def at(self, after: timedelta, event: Event) -> None:
        """Let `event` happen so long after the beginning, or now if that is over."""
        self._schedule(self._started_us + _micros(after), event)

    def _schedule(self, at_us: int, event: Event) -> None:
        # Of those at one time the one that was scheduled first happens first.
        self._scheduled += 1
        at_us = max(at_us, self._now_us)
        heappush(self._coming, (at_us, self._scheduled, event._replace(at_us=at_us)))

    async def play(self) -> Played:
        run = self._execution(())
        try:
            while run.end is None:
                known = len(run.commands)
                run.feed(self._next(run))
                for command in run.commands[known:]:
                    await self._begin(command)
            end = run.end
        finally:
            run.close()
        if end.parked:
            raise BadSetup(end.error.message if end.error else "The run is parked.")
        self._play_again(run.commands, end)
        return Played(
            end.status,
            end.outcome,
            end.error,
            tuple(map(str, run.commands)),
            tuple((c.name, c.model) for c in run.commands if c.model is not None),
            (self._now_us - self._started_us) * _US,
        )

    def _execution(self, known: Sequence[Known]) -> Execution:
        its = self._its
        return Execution(its.function, self._model, self._id, calls=its.calls, known=known)

    def _next(self, run: Execution) -> Event:
        name = self._id.stage
        if len(self._seen) == _MAX_EVENTS:
            raise BadSetup(f"Run of {name}: it has not ended after {_MAX_EVENTS:,} events.")
        if not self._coming:
            waits = ", ".join(str(p.command) for p in run.waits)
            raise BadSetup(
                f"Run of {name}: it waits for {waits}, and nothing more happens. Give the test's "
                "`signals` what it waits for, or the wait a time-out."
            )
        self._now_us, _, event = heappop(self._coming)
        self._seen.append(event)
        return event

    async def _begin(self, command: Command) -> None:
        if command.due_us is not None:
            self._schedule(command.due_us, Event("timer", str(command.n), "", b"", 0))
        if command.kind != CALL:
            return
        if command.name not in self._answers:
            given = ", ".join(sorted(self._answers)) or "none"
            raise BadSetup(
                f"Run of {self._id.stage}: it calls {command.name}, for which the test has no "
                f"answer: add it to `calls` (there are: {given})."
            )
        took, status, value = await self._answer(command, self._answers[command.name])
        event = Event("call", str(command.child), status.value, value, 0)
        self._schedule(self._now_us + _micros(took), event)

    async def _answer(self, command: Command, answer: Answer) -> tuple[timedelta, Status, bytes]:
        took = timedelta()
        while True:
            match answer:
                case Takes():
                    took, answer = took + answer.after, answer.answer
                case Stage() if answer.orchestrates is not None:
                    played = await self._play_call(command, answer, took)
                    took, answer = took + played.elapsed, played.error or played.outcome
                    if played.status is Status.CANCELLED:
                        return took, played.status, _json(answer)
                case Stage():
                    answer = await self._handled(command, answer)
                case BaseException() | Reject() | JobError():
                    return took, Status.FAILED, _json(_error(answer))
                case Done(result=model) | Emit(model=model):
                    answer = model
                case Retry() | Fork() | Wait():
                    raise BadSetup(
                        f"The call of {command.name} ended in a {type(answer).__name__}: give the "
                        "test's `calls` what comes of it in the end."
                    )
                case _ if callable(answer):
                    answer = await _awaited(answer(command.model))
                case _:
                    return took, Status.DONE, _json(answer)

    async def _handled(self, command: Command, stage: Stage[Any, Any]) -> Answer:
        job = job_context("test", stage.name, trace_id=self._job_of(command))
        try:
            return await _awaited(stage.handler(command.model, job))
        except Exception as e:
            return e

    async def _play_call(
        self, command: Command, called: Stage[Any, Any], took: timedelta
    ) -> Played:
        assert command.model is not None, "a call hands a model"
        return await play(
            called,
            command.model,
            calls=self._answers,
            started=_EPOCH + self._now_us * _US + took,
            trace_id=self._job_of(command),
        )

    def _job_of(self, command: Command) -> str:
        return f"{self._id.trace_id}/{command.child}"

    def _play_again(self, commands: Sequence[Command], end: End) -> None:
        again = self._execution([Known(c.kind, c.name) for c in commands])
        try:
            for event in self._seen:
                again.feed(event)
            again.check()
        finally:
            again.close()
        for first, second in zip(commands, again.commands, strict=False):
            if first != second:
                raise BadSetup(
                    f"Run of {self._id.stage}: run again over the same journal, its command "
                    f"{first.n} ({first}) is another. It may depend on nothing but its input and "
                    "its run: use run.now(), run.random() and run.id()."
                )
        if again.end != end:
            why = again.end.error.message if again.end and again.end.error else "it ends otherwise."
            raise BadSetup(
                f"Run of {self._id.stage}: run again over the same journal, {why} It may depend on "
                "nothing but its input and its run: use run.now(), run.random() and run.id()."
            )


def _micros(time: timedelta) -> int:
    return round(time / _US)


def _error(failed: BaseException | Reject | JobError) -> JobError:
    match failed:
        case JobError():
            return failed
        case Reject(reason=reason):
            return job_error("rejected", reason)
    return job_error(type(failed).__name__, f"{failed}")


def _json(value: object) -> bytes:
    """As a state has it: the run must not see more than it will in production."""
    if isinstance(value, BaseModel):
        return value.model_dump_json(by_alias=True).encode()
    try:
        return orjson.dumps(value)
    except TypeError as e:
        raise BadSetup(f"The answer {value!r} is no JSON: {e}.") from None


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
