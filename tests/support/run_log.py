"""Logs of a join topic that holds runs, made up, and agents that read them: some crash, some are
zombies (as `tests.support.join_log` does for joins).

A log is made by a calm reading: what could come next is drawn, and each record leads to others, as
its step is committed: ends of calls, timers, redrives, the next run of the job. Signals come at any
time, before their run and between two runs too, and everything may come twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st
from pydantic import BaseModel

from schemas.state import Status
from streams.errors import BadRecord
from streams.joins.book import Cancelled, Incoming
from streams.joins.wire import Arrival, Cancel, JoinRecord, Reopen
from streams.orchestration.execution import Event
from streams.orchestration.journal import Happened, Journal, Player, RunTurn, turns
from streams.orchestration.rows import event_of
from streams.orchestration.wire import Began, Beginning, Fired, Sent
from streams.signals import Signal
from tests.support.join_log import Move
from tests.support.programs import MACHINE, SIGNALS, Program, ended, programs

_ORDER = b'{"by":"ann","reason":"why not"}'
PARENTS = tuple(f"{n:032x}" for n in (1, 2))
_MAX_RECORDS = 40


def encode(model: BaseModel) -> tuple[str, bytes]:
    if getattr(model, "large", False):
        raise BadRecord("The payload is too large.")
    return type(model).__name__, model.model_dump_json().encode()


def player() -> Player:
    return Player("flow", {"machine": MACHINE}, encode)


class Log(NamedTuple):
    """Records in the order of their offsets; `causes` are the records whose steps wrote them, None
    where nothing did."""

    records: tuple[Incoming, ...]
    causes: tuple[int | None, ...]


class Coming(NamedTuple):
    parent: str
    record: JoinRecord
    cause: int | None


@st.composite
def logs(draw: st.DrawFn) -> Log:
    made = _Made(draw)
    for parent in PARENTS[: draw(st.integers(1, 2))]:
        made.job(parent)
    while made.coming and len(made.records) < _MAX_RECORDS:
        made.next(made.coming.pop(draw(st.integers(0, len(made.coming) - 1))))
    return Log(tuple(made.records), tuple(made.causes))


class _Made:
    """A log while it is made."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw, self._shelf = draw, Shelf()
        self._dice = draw(st.integers(0, 99))
        self.coming: list[Coming] = []
        self.records: list[Incoming] = []
        self.causes: list[int | None] = []
        self._left: dict[str, list[Program | str]] = {}
        self._sent = 0

    def job(self, parent: str) -> None:
        """A job with up to three runs: orchestrations, and waits for a signal."""
        run = programs() | st.sampled_from(SIGNALS)
        self._left[parent] = self._draw(st.lists(run, min_size=1, max_size=3))
        self._begin(parent, 1, 0, None)
        for name in self._draw(st.lists(st.sampled_from(SIGNALS), max_size=3)):
            self._signal(parent, name, None)
        if self._draw(st.integers(0, 5)) == 0:
            self.coming.append(Coming(parent, Cancel(1, parent, _ORDER), None))

    def _signal(self, parent: str, name: str, cause: int | None) -> None:
        self._sent += 1
        value = Signal(name, self._sent).to_json()
        self.coming.append(Coming(parent, Sent(f"{self._sent}", name, value), cause))

    def _begin(self, parent: str, seq: int, first: int, cause: int | None) -> None:
        if not self._left[parent]:
            return
        its = self._left[parent].pop(0)
        if isinstance(its, str):
            what = Beginning(stage="ask", first_child=first, signal=its, timeout_ms=1000)
            record = Began(seq, 5, what, b'{"n":1}')
        else:
            what = Beginning(stage="machine", first_child=first)
            record = Began(seq, 5, what, its.model_dump_json().encode())
        self.coming.append(Coming(parent, record, cause))

    def next(self, its: Coming) -> None:
        """Write it, perhaps twice, and find out what it leads to."""
        for _ in range(2 if self._draw(st.integers(0, 5)) == 0 else 1):
            n = len(self.records)
            cancelled = Cancelled(its.parent, "") if isinstance(its.record, Cancel) else None
            x = Incoming(its.parent, (0, 2 * n), its.record, 1_000_000 * (n + 1), cancelled)
            self.records.append(x)
            self.causes.append(its.cause)
            for turn in self._shelf.write([x]):
                self._follow(turn, n)

    def _follow(self, turn: RunTurn, n: int) -> None:
        parent, end = turn.parent, turn.end
        for each in turn.asked:
            if each.kind == "call":
                status, value = ended(each.name, each.value, self._dice)
                arrival = Arrival(each.child or 0, status, 3, value)
                self.coming.append(Coming(parent, arrival, n))
            if each.due_us is not None:
                self.coming.append(Coming(parent, Fired(turn.run, each.n), n))
            if each.kind == "signal" and self._draw(st.booleans()):
                self._signal(parent, each.name, None)
        if end is None:
            return
        if end.status is Status.FAILED:
            if self._draw(st.booleans()):
                self.coming.append(Coming(parent, Reopen(turn.seq), n))
        elif end.to is not None:
            self._begin(parent, turn.seq + 1, turn.children, n)


@dataclass
class Shelf:
    """The tables in memory: what `streams.orchestration.rows` does in Postgres."""

    runs: dict[tuple[str, int], Journal] = field(default_factory=dict)
    #: Of jobs whose next run is still to come.
    early: defaultdict[str, list[Happened]] = field(default_factory=lambda: defaultdict(list))
    _position: int = 0

    async def apply(self, batch: Sequence[Incoming]) -> list[RunTurn]:
        return self.write(batch)

    def write(self, batch: Sequence[Incoming]) -> list[RunTurn]:
        for x in batch:
            if isinstance(x.record, Began):
                self.runs.setdefault((x.parent, x.record.seq), _opened(x.parent, x.record))
        for x in batch:
            found = event_of(x, self._of(x.parent))
            if found is not None:
                self._happen(x, *found)
        for x in batch:
            if isinstance(x.record, Began):
                self._adopt(x.parent, x.record.seq)
        found_turns: list[RunTurn] = []
        for parent in {x.parent for x in batch}:
            for each in self._of(parent):
                player().play(each)
                self.early[parent] += each.left
                each.left = []
                found_turns += turns(each, {x.place for x in batch})
        return found_turns

    def _of(self, parent: str) -> list[Journal]:
        return [j for (of, _), j in sorted(self.runs.items()) if of == parent]

    def _happen(self, x: Incoming, run: int, event: Event) -> None:
        everything = [(j.seq, e) for j in self._of(x.parent) for e in j.events]
        everything += [(0, e) for e in self.early[x.parent]]
        for seq, known in everything:
            same = (known.event.kind, known.event.ref) == (event.kind, event.ref)
            if same and (seq == run or event.kind == "signal"):
                return
            if event.kind in ("signal", "cancel") and known.place == x.place:
                return
        self._position += 1
        made = Happened(self._position, event, x.place)
        (self.runs[x.parent, run].events if run else self.early[x.parent]).append(made)

    def _adopt(self, parent: str, seq: int) -> None:
        run = self.runs[parent, seq]
        if run.seen == 0:
            run.events = sorted(
                [*self.early.pop(parent, []), *run.events], key=lambda e: e.position
            )

    def rows(self) -> list[tuple[Any, ...]]:
        """What can be read of the runs."""
        return [
            (j.parent, j.seq, j.step, j.status, len(j.asked), j.calls, list(j.waits))
            for _, j in sorted(self.runs.items())
        ]


def _opened(parent: str, record: Began) -> Journal:
    what = record.what
    return Journal(
        parent=parent,
        seq=record.seq,
        stage=what.stage,
        input=record.input,
        signal=what.signal,
        timeout_ms=what.timeout_ms,
        first_child=what.first_child,
        born_us=record.born_us,
        keys_of=what.keys_of,
        shielded=what.shielded,
        step=record.seq,
        calls=0,
        seen=0,
        status="open",
    )


Apply = Callable[[Sequence[Incoming]], Awaitable[Sequence[RunTurn]]]


async def run(log: Log, plan: Sequence[Move], apply: Apply) -> list[RunTurn]:
    """Read `log` by `plan`, then to its end; the turns that Kafka has, in order."""
    committed: list[RunTurn] = []
    at = 0
    patient = Move(len(log.records), lost=False, zombie=False, back=0)
    for move in (*plan, *[patient] * len(log.records)):
        start = max(0, at - move.back) if move.zombie else at
        batch = log.records[start : min(start + move.size, _there(log, at))]
        found = deepcopy(await apply(batch)) if batch else []
        if not (move.zombie or move.lost):
            committed += found
            at += len(batch)
    assert at == len(log.records)
    return committed


def _there(log: Log, at: int) -> int:
    """How far the log reaches when everything before `at` is committed."""
    later: Iterator[int] = (
        n for n, cause in enumerate(log.causes) if cause is not None and cause >= at
    )
    return next(later, len(log.records))


async def calmly(log: Log) -> tuple[list[RunTurn], Shelf]:
    """Record by record in memory, and nothing goes wrong."""
    shelf = Shelf()
    plan = [Move(1, lost=False, zombie=False, back=0)] * len(log.records)
    return await run(log, plan, shelf.apply), shelf


def told(found: Sequence[RunTurn]) -> list[tuple[Any, ...]]:
    """What turns write: all but the position in Postgres."""
    return sorted(
        (
            t.place,
            t.parent,
            t.seq,
            t.run,
            t.children,
            [(a.n, a.kind, a.name, a.child, a.value, a.due_us, a.shielded) for a in t.asked],
            str(t.end),
            t.resumed,
            list(t.waits),
        )
        for t in found
    )
