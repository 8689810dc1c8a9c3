"""A run as its journal has it, and what events that are new to it lead to. Pure.

New commands, and an end, belong to the event that they followed; where other code sees more in old
events than the code before it did, to the first new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from schemas.state import JobError, Status, job_error
from streams.orchestration.declare import Orchestration
from streams.orchestration.execution import End, Event, Execution, Known, describe
from streams.orchestration.run import CALL, Command, Run, RunId, TimedOut
from streams.outcome import Done, Emit
from streams.signals import Signal

#: Partition and offset of a record of the join topic.
Place = tuple[int, int]


@dataclass(slots=True)
class Asked:
    """A command as it is kept; see the table `run_commands`."""

    n: int
    kind: str
    name: str
    child: int | None
    ce_type: str
    value: bytes
    shielded: bool
    due_us: int | None
    position: int


class Ended(NamedTuple):
    """How a run ended: `value` is the payload, or a `JobError` as JSON where there is no result.
    Of a wait `ce_type` is empty, and the signal is in `signal`."""

    status: Status
    to: str | None
    ce_type: str
    value: bytes | None


@dataclass(slots=True)
class Happened:
    """An event as it is kept; `place` None for one of an earlier topic of that name."""

    position: int
    event: Event
    place: Place | None
    step: int | None = None
    end: Ended | None = None
    changed: bool = False


@dataclass(slots=True)
class Journal:
    """One run; see the table `runs`."""

    parent: str
    seq: int
    stage: str
    input: bytes
    signal: str | None
    timeout_ms: int | None
    first_child: int
    born_us: int
    keys_of: str | None
    shielded: str | None
    step: int
    calls: int
    seen: int
    status: str
    events: list[Happened] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    #: Of `asked`, how many are written down.
    kept: int = 0
    #: Of one that is over: signals, and a cancel, that it has not taken.
    left: list[Happened] = field(default_factory=list)

    def holds(self, child: int) -> bool:
        """Whether the end of that child is an event of this run."""
        past = self.first_child + self.calls
        return self.first_child <= child and (self.status != "ended" or child < past)


#: Bytes and type of a payload; see `streams.runtime.records`.
Encode = Callable[[BaseModel], tuple[str, bytes]]

_PARKED: Final = "parked"


class Player:
    """Plays journals on the orchestrations of a flow."""

    def __init__(
        self, flow: str, orchestrations: Mapping[str, Orchestration], encode: Encode
    ) -> None:
        self._flow, self._orchestrations, self._encode = flow, orchestrations, encode

    def play(self, journal: Journal) -> None:
        """Let the run see its new events."""
        new: Sequence[Happened] = [x for x in journal.events if x.position > journal.seen]
        if not new:
            return
        journal.seen = new[-1].position
        if journal.status == "ended":
            return
        stood = journal.status != "open"
        if stood:
            new = self._reopened(journal, new)
        if new:
            self._run(journal, new, back=new[0] if stood else None)

    @staticmethod
    def _reopened(journal: Journal, new: Sequence[Happened]) -> Sequence[Happened]:
        """A run that failed, or was parked, goes on where somebody brought it back."""
        for n, each in enumerate(new):
            if each.event.kind == "redrive" and int(each.event.ref) == journal.step:
                journal.status = "open"
                return new[n:]
        return ()

    def _run(self, journal: Journal, new: Sequence[Happened], back: Happened | None) -> None:
        """Play it. That it is brought `back` is a step of the job, whatever follows."""
        run = self._begin(journal)
        if isinstance(run, End):
            self._follow(journal, new[0], (), run)
            return
        try:
            for each in journal.events:
                if each.position < new[0].position:
                    run.feed(each.event)
            run.check()
            for each in new:
                run.feed(each.event)
                commands = run.commands[len(journal.asked) :]
                if commands or run.end is not None or each is back:
                    self._follow(journal, each, commands, run.end)
                if journal.status != "open":
                    break
            waits = run.waits if journal.status == "open" else ()
            journal.waits = [describe(p.command) for p in waits]
            if journal.status == "ended":
                self._leave(journal, run)
        finally:
            run.close()

    @staticmethod
    def _leave(journal: Journal, run: Execution) -> None:
        """What came and was not taken is for the next run of the job, whatever batch it came in."""
        taken = run.taken
        journal.left = [
            each
            for order, each in enumerate(journal.events, 1)
            if each.event.kind in ("signal", "cancel") and order not in taken
        ]
        journal.events = [each for each in journal.events if each not in journal.left]

    def _begin(self, journal: Journal) -> Execution | End:
        run_id = RunId(journal.parent, journal.seq, self._flow, journal.stage)
        known = [Known(a.kind, a.name) for a in journal.asked]
        if journal.signal is not None:
            wait = _Wait(journal.signal, journal.timeout_ms, journal.stage)
            return Execution(_wait, wait, run_id, calls=(), known=known)
        found = self._orchestrations.get(journal.stage)
        if found is None:
            return _parked(
                f"This program's flow has no orchestration {journal.stage}. Run a release that has "
                "it, then redrive."
            )
        try:
            model = found.input.model_validate_json(journal.input)
        except ValidationError as e:
            fault = e.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the whole"
            what = found.input.__name__
            return _parked(f"The input of the run is no {what}: {where}: {fault['msg']}.")
        return Execution(
            found.function,
            model,
            run_id,
            calls=found.calls,
            first_child=journal.first_child,
            known=known,
        )

    def _follow(
        self, journal: Journal, after: Happened, commands: Sequence[Command], end: End | None
    ) -> None:
        """What `after` led to."""
        journal.step += 1
        after.step, after.changed = journal.step, True
        try:
            asked = [self._asked(each, after) for each in commands]
            ended = None if end is None else self._ended(end)
        except Exception as e:
            # A payload that cannot be written, or is too large.
            error = job_error("bad_record", f"Orchestration {journal.stage}: {e}")
            asked, end = [], End(Status.FAILED, None, error)
            ended = self._ended(end)
        journal.asked += asked
        journal.calls += sum(a.kind == CALL for a in asked)
        if end is not None:
            after.end = ended
            if end.parked:
                journal.status = _PARKED
            else:
                journal.status = "failed" if end.status is Status.FAILED else "ended"

    def _asked(self, command: Command, after: Happened) -> Asked:
        n, kind, name, due_us, child, model, shielded = command
        ce_type, value = ("", b"") if model is None else self._encode(model)
        return Asked(n, kind, name, child, ce_type, value, shielded, due_us, after.position)

    def _ended(self, end: End) -> Ended:
        if end.error is not None:
            return Ended(end.status, None, "", end.error.model_dump_json().encode())
        match end.outcome:
            case Emit(to=to, model=_Resumed() as resumed):
                return Ended(end.status, to, "", resumed.signal.to_json())
            case Emit(to=to, model=model):
                ce_type, value = self._encode(model)
                return Ended(end.status, to, ce_type, value)
            case Done(result=result) if result is not None:
                return Ended(end.status, None, *self._encode(result))
        return Ended(end.status, None, "", None)


def _parked(why: str) -> End:
    return End(Status.WAITING, None, job_error("bad_setup", why), parked=True)


class _Wait(NamedTuple):
    signal: str
    timeout_ms: int | None
    stage: str


class _Resumed(BaseModel):
    """The stage goes on with what it was handed, and the signal."""

    signal: Signal


async def _wait(wait: _Wait, run: Run) -> Emit:
    """A wait is a run that needs no code of an author."""
    timeout = None if wait.timeout_ms is None else timedelta(milliseconds=wait.timeout_ms)
    try:
        signal = await run.signal(wait.signal, timeout=timeout)
    except TimedOut:
        signal = Signal(wait.signal, at=run.now(), timed_out=True)
    return Emit(wait.stage, _Resumed(signal=signal))


class RunTurn(NamedTuple):
    """The record at `place` writes its job's step `seq`: what the run at `stage` asked for then,
    and how it ended, if it did. `children` is how many the job has had."""

    place: Place
    parent: str
    seq: int
    run: int
    stage: str
    born_us: int
    keys_of: str | None
    shielded: str | None
    children: int
    asked: Sequence[Asked]
    end: Ended | None
    #: Of a wait that is over: what its stage was handed.
    resumed: bytes | None
    waits: Sequence[str]


def turns(journal: Journal, places: set[Place]) -> list[RunTurn]:
    """Whose turn it is, of the records at `places`."""
    found = []
    for each in journal.events:
        if each.place not in places or each.step is None or each.place is None:
            continue
        asked = [a for a in journal.asked if a.position == each.position]
        before = sum(1 for a in journal.asked if a.position <= each.position and a.kind == CALL)
        found.append(
            RunTurn(
                each.place,
                journal.parent,
                each.step,
                journal.seq,
                journal.stage,
                journal.born_us,
                journal.keys_of,
                journal.shielded,
                journal.first_child + before,
                asked,
                each.end,
                journal.input if journal.signal is not None else None,
                [describe_asked(a) for a in asked if a.kind != CALL],
            )
        )
    return found


def describe_asked(asked: Asked) -> str:
    return describe(Command(asked.n, asked.kind, asked.name, asked.due_us, asked.child))


def error_of(ended: Ended) -> JobError:
    return JobError.model_validate(orjson.loads(ended.value or b"{}"))
