"""One run of an orchestration over a journal: events in, commands and an end out. Pure.

The same events give the same commands, whoever runs it and however often. Results may come in any
order: a command's number is its place in the code's order, so only `first_of` sees the difference.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson
from pydantic import BaseModel

from schemas.ids import MAX_CHILDREN, MAX_DEPTH
from schemas.state import JobError, Status, job_error
from streams.errors import BadRecord, BadSetup, HandoffError
from streams.orchestration.run import (
    CALL,
    SIGNAL,
    CallFailed,
    Came,
    Command,
    Pending,
    Run,
    RunCancelled,
    RunId,
    TimedOut,
)
from streams.outcome import Done, Emit, Outcome, Reject
from streams.signals import Signal

#: A run is run again over its whole journal for each event; a longer one hands itself on.
MAX_COMMANDS: Final = 2_000

#: How a call ended that was cancelled as a descendant of its run's job.
WITH_ITS_RUN: Final = "cancelled with its run"

_MAX_CLOSES: Final = 100

Function = Callable[[Any, Run], Coroutine[Any, Any, Any]]


class Event(NamedTuple):
    """Something that happened to a run at `at_us` (epoch): `ref` says to which part of it.

    `start`; `call` (the child's number; `detail` is how it ended, `value` its result or error);
    `timer` (the command's number); `signal` (its id; `detail` is its name, `value` a `Signal` as
    JSON); `cancel` (its record; `value`: `by` whom and the `reason`, JSON); `redrive`. A call that
    was cancelled with its run, which need not have heard of it yet, ends as `WITH_ITS_RUN`.
    """

    kind: str
    ref: str
    detail: str
    value: bytes
    at_us: int


class End(NamedTuple):
    """How a run ended: with an outcome of the function, or an error and the status it leads to;
    `parked` is one that waits for a person, and for other code."""

    status: Status
    outcome: Outcome | None = None
    error: JobError | None = None
    parked: bool = False


class Known(NamedTuple):
    """A command as an earlier run issued it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


class Misfit(BaseException):
    """The code asks for another command than the journal has. No `Exception`: it is not for the
    orchestration to catch."""


class Execution:
    """`feed` it all events of a journal in order. Not for use after an end."""

    def __init__(
        self,
        function: Function,
        model: Any,
        run_id: RunId,
        *,
        calls: Sequence[str],
        first_child: int = 0,
        known: Sequence[Known] = (),
    ) -> None:
        self.now_us = 0
        self.cancelled = False
        self.commands: list[Command] = []
        self.end: End | None = None
        #: What it waits for now.
        self.waits: Sequence[Pending[Any]] = ()
        self._id, self._calls, self._known = run_id, calls, known
        self._next_child = first_child
        self._function, self._model = function, model
        self._run: Coroutine[Any, Any, Any] | None = None
        self._order = 0
        #: Of signals that were taken, and of cancels: as the how-manieth events they came.
        self._taken: set[int] = set()
        self._cancels: set[int] = set()
        self._over: dict[int, Came] = {}
        self._by_child: dict[int, Command] = {}
        self._signals: defaultdict[str, deque[Came]] = defaultdict(deque)
        self._misfit: str | None = None
        self._cancel: RunCancelled | None = None

    # -- what happens ------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Let `event` happen: adds to `commands`, sets `waits` and perhaps `end`.

        Nothing runs before `start`: what came earlier is there when it begins. Nothing runs after
        an end.
        """
        if self.end is not None:
            return
        self._order += 1
        self.now_us = event.at_us
        self._note(event)
        starts = event.kind == "start"
        if self._run is None:
            if not starts:
                return
            self._run = self._function(self._model, Run(self, self._id))
        cancel = None if self.cancelled else self._cancel
        if starts or (cancel is None and event.kind != "cancel"):
            self._go_on(None)
        if self.end is None and cancel is not None:
            self.cancelled = True
            self._go_on(cancel)

    def _note(self, event: Event) -> None:
        match event.kind:
            case "call":
                command = self._by_child.get(int(event.ref))
                if event.detail == WITH_ITS_RUN:
                    with_it = _error(event.value, event.detail).message
                    self._cancel = self._cancel or RunCancelled("", "", with_it)
                if command is not None:
                    self._over.setdefault(command.n, self._end_of_call(command, event))
            case "timer":
                n = int(event.ref)
                if n < len(self.commands):
                    name = self.commands[n].name
                    late = TimedOut(name) if self.commands[n].kind == SIGNAL else None
                    self._over.setdefault(n, Came(self._order, None, late))
            case "signal":
                signal = Signal.from_json(event.value)
                self._signals[event.detail].append(Came(self._order, signal))
            case "cancel":
                self._cancels.add(self._order)
                self._cancel = self._cancel or _cancel(event.value)

    def _end_of_call(self, command: Command, event: Event) -> Came:
        if event.detail == Status.DONE:
            return Came(self._order, orjson.loads(event.value or b"null"))
        status = Status.CANCELLED if event.detail == WITH_ITS_RUN else Status(event.detail)
        job_id = f"{self._id.trace_id}/{command.child}"
        error = _error(event.value, status.value)
        return Came(self._order, None, CallFailed(job_id, command.name, status, error))

    def _go_on(self, raised: Exception | None) -> None:
        run = self._run
        assert run is not None
        try:
            waits = run.send(None) if raised is None else run.throw(raised)
        except StopIteration as e:
            self._end(self._outcome(e.value))
        except Misfit:
            pass
        except RunCancelled as e:
            self._end(End(Status.CANCELLED, None, job_error("cancelled", str(e))))
        except BadSetup as e:
            self._park("bad_setup", e.message)
        except Exception as e:
            self._end(End(Status.FAILED, None, self._failure(e)))
        else:
            self._wait_for(waits)
        if self._misfit is not None:
            self._park("code_changed", self._misfit)

    def _wait_for(self, waits: Any) -> None:
        if isinstance(waits, tuple | list) and all(isinstance(w, Pending) for w in waits):
            self.waits = waits
        else:
            self._park(
                "bad_setup",
                f"Orchestration {self._id.stage} awaited {waits!r}, which is nothing of its run. "
                "It may await only what run.call, run.sleep, run.signal, run.gather and "
                "run.first_of return; other work belongs into a stage that it calls.",
            )

    def _outcome(self, value: Any) -> End:
        match value:
            case None:
                return End(Status.DONE, Done())
            case Emit() | Done():
                status = Status.RUNNING if isinstance(value, Emit) else Status.DONE
                return End(status, value)
            case Reject(reason=reason):
                return End(Status.FAILED, None, job_error("rejected", reason))
            case BaseModel():
                return End(Status.DONE, Done(value))
            case _:
                why = (
                    f"Orchestration {self._id.stage} returned a {type(value).__name__}; return a "
                    "model, Done, Emit or Reject."
                )
                return End(Status.FAILED, None, job_error("bad_record", why))

    def _failure(self, error: Exception) -> JobError:
        kind = error.kind if isinstance(error, BadRecord) else "run_failed"
        said = error.message if isinstance(error, HandoffError) else f"{error}"
        name = type(error).__name__
        return job_error(kind, f"Orchestration {self._id.stage} failed: {name}: {said}")

    def _park(self, kind: str, message: str) -> None:
        self._end(End(Status.WAITING, None, job_error(kind, message), parked=True))

    def _end(self, end: End) -> None:
        self.end, self.waits = end, ()

    def check(self) -> None:
        """After the events of an earlier run: it must have issued all commands that are known."""
        known, issued = self._known, len(self.commands)
        if self.end is not None and self.end.parked:
            return
        if issued < len(known):
            self._misfits(issued, known[issued], "none")
            self._park("code_changed", self._misfit or "")

    def _misfits(self, n: int, expected: object, got: object) -> None:
        self._misfit = (
            f"The code of orchestration {self._id.stage} does not fit the journal of run "
            f"{self._id.trace_id}: its command {n} was '{expected}', and this code asks for "
            f"'{got}'. Nothing was done. Run the release that began it, or one whose code begins "
            "the same way, then redrive."
        )

    # -- what it asks for (`streams.orchestration.run.Issuer`) ---------------------------------

    def issue(
        self, kind: str, name: str, due_us: int | None = None, model: BaseModel | None = None
    ) -> Command:
        n = len(self.commands)
        if self._misfit is None and n < len(self._known) and self._known[n] != (kind, name):
            self._misfits(n, self._known[n], Known(kind, name))
        if self._misfit is not None:
            raise Misfit(self._misfit)
        if n == MAX_COMMANDS:
            raise BadRecord(
                f"it has issued {n:,} commands, the most that one run may have; let it hand itself "
                f'on: return Emit("{self._id.stage}", …).'
            )
        if "\0" in name:
            raise BadRecord(f"it waits for signal {name!r}: a name has no NUL.")
        child = self._child(name) if kind == CALL else None
        command = Command(n, kind, name, due_us, child, model, self.cancelled)
        self.commands.append(command)
        if child is not None:
            self._by_child[child] = command
        return command

    def _child(self, name: str) -> int:
        """The number of the next child, if it may be called."""
        if name not in self._calls:
            declared = ", ".join(self._calls) or "nothing"
            raise BadSetup(
                f"Orchestration {self._id.stage} calls {name}, but declares {declared}: add it to "
                "its `calls`."
            )
        if self._next_child == MAX_CHILDREN or self._id.trace_id.count("/") >= MAX_DEPTH:
            raise BadRecord(
                f"job {self._id.trace_id} would have more than {MAX_CHILDREN:,} children, or be "
                f"called more than {MAX_DEPTH} deep."
            )
        self._next_child += 1
        return self._next_child - 1

    def came(self, command: Command) -> Came | None:
        over = self._over.get(command.n)
        if command.kind == SIGNAL:
            sent = self._signals[command.name]
            if sent and (over is None or sent[0].order < over.order):
                return sent[0]
        return over

    def take(self, command: Command) -> Came:
        came = self.came(command)
        assert came is not None, "only what is over is taken"
        if command.kind == SIGNAL and came is not self._over.get(command.n):
            self._signals[command.name].popleft()
            self._taken.add(came.order)
        return came

    @property
    def taken(self) -> set[int]:
        """Of the signals, and if it was cancelled the cancels, that it has used up: as the
        how-manieth events they came."""
        return self._taken | self._cancels if self.cancelled else self._taken

    def close(self) -> None:
        """Let go of the function where it waits."""
        run, self._run = self._run, None
        # They know their execution: a circle, and workers seldom look for those.
        self.waits = ()
        self._misfit = self._misfit or "the run is over"
        for _ in range(_MAX_CLOSES):
            try:
                if run is not None:
                    run.close()
                return
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: S112
                # A `finally` that awaits or asks for something: it is for the run that ends. Closed
                # again, it gets past it.
                continue


def _error(value: bytes, otherwise: str) -> JobError:
    try:
        return JobError.model_validate_json(value)
    except ValueError:
        return JobError(kind=otherwise, message="it says no more")


def _cancel(value: bytes) -> RunCancelled:
    try:
        told = orjson.loads(value)
        return RunCancelled(str(told["by"]), str(told["reason"]))
    except (ValueError, KeyError, TypeError):
        return RunCancelled("?", "")


def describe(command: Command) -> str:
    """For people: `call score (/3)`, `signal approval until 2026-…`, `sleep until …`."""
    text = str(command)
    if command.kind == CALL:
        return f"{text} (/{command.child})"
    if command.due_us is not None:
        at = datetime.fromtimestamp(command.due_us / 1e6, UTC)
        text += f" until {at.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    return text
