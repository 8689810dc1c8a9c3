"""Logs of a join topic, made up, and agents that read them: some crash, some are zombies.

A log is what a partition could hold: an expectation for each fork, arrivals in any order and before
it too, branches that fail, are redriven and succeed, records that come twice, deadlines, redrives,
cancels.
`run` lets an owner read it in batches, of which some are lost between Postgres and Kafka, while
zombies that can never commit apply batches of their own. What was committed is the judge's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from schemas.state import Status
from streams.joins.book import Book, Cancelled, Incoming, Join, Turn
from streams.joins.wire import (
    Arrival,
    Cancel,
    Deadline,
    Expectation,
    Expected,
    JoinRecord,
    Reopen,
)

PARENTS = tuple(f"{n:032x}" for n in (1, 2, 3))
_BRANCHES = 6
_RULES = ("wait", "fail", "errors")


class Log(NamedTuple):
    """A partition's records, in the order of their offsets."""

    records: tuple[Incoming, ...]

    @property
    def expected(self) -> dict[tuple[str, int], Expectation]:
        found = ((x.parent, x.record) for x in self.records)
        return {(p, r.seq): r.what for p, r in found if isinstance(r, Expected)}

    @staticmethod
    def of_one_join(branches: int) -> Log:
        """One fork whose branches all come, in order."""
        what = Expectation(
            stage="merge", forked_by="split", first=0, expected=branches, rule="wait"
        )
        records: list[JoinRecord] = [Expected(1, 5, what)]
        records += [Arrival(n, Status.DONE, 1, b"%d" % n) for n in range(branches)]
        return Log(tuple(Incoming(PARENTS[0], (0, n), r) for n, r in enumerate(records)))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    records: list[tuple[str, JoinRecord]] = []
    for parent in PARENTS[: draw(st.integers(1, 3))]:
        records += draw(_of_one(parent))
    order = draw(st.permutations(range(len(records))))
    shuffled = _causal([records[n] for n in order])
    whole = [
        Incoming(p, (0, 2 * n), r, cancelled=_cancelled(p, r)) for n, (p, r) in enumerate(shuffled)
    ]
    return Log(tuple(_possible(whole)))


def _cancelled(parent: str, record: JoinRecord) -> Cancelled | None:
    told = isinstance(record, Cancel) or (isinstance(record, Arrival) and record.ancestor)
    return Cancelled(parent, "told") if told else None


def _possible(records: Sequence[Incoming]) -> Iterator[Incoming]:
    """Without redrives of jobs that had no dead letter."""
    shelf = Shelf()
    for each in records:
        if isinstance(each.record, Reopen):
            joins = [j for j in shelf.joins.values() if j.parent == each.parent]
            if not any(j.status == "failed" and j.step + 1 == each.record.seq for j in joins):
                continue
        shelf.write([each])
        yield each


@st.composite
def _of_one(draw: st.DrawFn, parent: str) -> list[tuple[str, JoinRecord]]:
    """A job that forks once or twice; its numbers go on counting."""
    found: list[tuple[str, JoinRecord]] = []
    first = 0
    for seq in (1, 4)[: draw(st.integers(1, 2))]:
        count, rule = draw(st.integers(0, _BRANCHES)), draw(st.sampled_from(_RULES))
        timed = draw(st.booleans())
        what = Expectation.model_validate(
            {
                "stage": "merge",
                "forked_by": "split",
                "first": first,
                "expected": count,
                "rule": rule,
                "deadline_ms": 1 if timed else None,
            }
        )
        found.append((parent, Expected(seq, 5, what)))
        for n in range(first, first + count):
            found += [(parent, record) for record in draw(_branch(n))]
        if timed:
            found += [(parent, Deadline(seq))] * draw(st.integers(0, 2))
        found += [(parent, Reopen(seq + 1))] * draw(st.integers(0, 2))
        found += [(parent, Cancel(seq, parent, b""))] * draw(st.sampled_from((0, 0, 0, 1, 2)))
        first += count
    return found


@st.composite
def _branch(draw: st.DrawFn, n: int) -> list[JoinRecord]:
    """What one branch brings: perhaps nothing, perhaps a failure first, each perhaps twice."""
    fails, ends = draw(st.integers(0, 2)), draw(st.booleans())
    steps: list[JoinRecord] = [Arrival(n, Status.FAILED, k + 1, b"{}") for k in range(fails)]
    if draw(st.sampled_from((False, False, False, False, True))):
        steps.append(Arrival(n, Status.CANCELLED, fails + 1, b"{}", PARENTS[0]))
    elif ends:
        steps.append(Arrival(n, Status.DONE, fails + 1, b'{"n":%d}' % n))
    return [each for step in steps for each in [step] * draw(st.integers(1, 2))]


def _causal(records: Sequence[tuple[str, JoinRecord]]) -> list[tuple[str, JoinRecord]]:
    """The same with causes before effects: a deadline is known, and a redrive possible, only after
    the expectation; a branch fails before it is redriven."""

    def rank(record: JoinRecord) -> int:
        return int(isinstance(record, Deadline | Reopen | Cancel))

    ahead: list[tuple[str, JoinRecord]] = []
    held: list[tuple[str, JoinRecord]] = []
    for parent, record in records:
        known = {r.seq for p, r in ahead if p == parent and isinstance(r, Expected)}
        cause = record.seq - (1 if isinstance(record, Reopen) else 0) if rank(record) else None
        (held if cause is not None and cause not in known else ahead).append((parent, record))
    return ahead + held


@dataclass
class Shelf:
    """The tables in memory: what `streams.joins.rows` does in Postgres."""

    joins: dict[tuple[str, int], Join] = field(default_factory=dict)
    arrivals: dict[tuple[str, int], tuple[Arrival, bool]] = field(default_factory=dict)

    async def apply(self, batch: Sequence[Incoming]) -> list[Turn]:
        return self.write(batch)

    def write(self, batch: Sequence[Incoming]) -> list[Turn]:
        parents = {x.parent for x in batch}
        new = set()
        for parent, _, record, *_ in batch:
            if isinstance(record, Expected) and (parent, record.seq) not in self.joins:
                self.joins[parent, record.seq] = opened(parent, record)
                new.add((parent, record.seq))
        book = Book(deepcopy([j for j in self.joins.values() if j.parent in parents]), new)
        for (parent, n), (arrival, _) in self.arrivals.items():
            if parent in {p for p, _ in new}:
                book.early(parent, n, arrival.status)
        for each in batch:
            book.write(each)
        for parent, arrival, late in book.arrivals:
            known = self.arrivals.get((parent, arrival.number))
            if known is None or (arrival.seq > known[0].seq and not late):
                self.arrivals[parent, arrival.number] = (arrival, late)
        for join in book.changed:
            join.changed = False
            self.joins[join.parent, join.seq] = join
        return book.turns({x.place for x in batch})

    async def rows(self) -> dict[tuple[str, int], tuple[str, int]]:
        """What handlers can read: how each branch ended, and with which step."""
        return {k: (a.status.value, a.seq) for k, (a, late) in self.arrivals.items() if not late}


def opened(parent: str, record: Expected) -> Join:
    what = record.what
    return Join(
        parent=parent,
        seq=record.seq,
        stage=what.stage,
        first=what.first,
        expected=what.expected,
        rule=what.rule,
        has_deadline=what.deadline_ms is not None,
        born_us=record.born_us,
        keys_of=what.keys_of,
        shielded=what.shielded,
        step=record.seq,
    )


class Move(NamedTuple):
    """The owner, or a zombie that began `back` records before it, applies `size` records. A `lost`
    batch of the owner's never reaches Kafka: it comes again."""

    size: int
    lost: bool
    zombie: bool
    back: int


moves = st.lists(
    st.builds(Move, st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 6)),
    max_size=12,
)
Apply = Callable[[Sequence[Incoming]], Awaitable[list[Turn]]]


async def run(log: Log, plan: Sequence[Move], apply: Apply) -> list[Turn]:
    """Read `log` by `plan`, then to its end; the turns that Kafka has, in order."""
    committed: list[Turn] = []
    at = 0
    patient = Move(len(log.records), lost=False, zombie=False, back=0)
    for move in (*plan, *[patient] * len(log.records)):
        start = max(0, at - move.back) if move.zombie else at
        batch = log.records[start : min(start + move.size, _there(log, at))]
        turns = await apply(batch) if batch else []
        if not (move.zombie or move.lost):
            committed += turns
            at += len(batch)
    assert at == len(log.records)
    return committed


def _there(log: Log, at: int) -> int:
    """How far the log reaches when everything before `at` is committed: an operator can redrive a
    job only once its dead letter is there."""
    later = range(at + 1, len(log.records))
    return next((n for n in later if isinstance(log.records[n].record, Reopen)), len(log.records))


def calmly(log: Log) -> tuple[list[Turn], Shelf]:
    """Record by record in memory, and nothing goes wrong."""
    shelf = Shelf()
    plan = [Move(1, lost=False, zombie=False, back=0)] * len(log.records)
    return asyncio.run(run(log, plan, shelf.apply)), shelf


def told(turn: Turn) -> tuple[object, ...]:
    """What a turn writes; the counts only if they are handed on."""
    joined = turn.outcome == "joined"
    counts = (turn.ref.done, turn.ref.failed) if joined else ()
    return turn.place, turn.parent, turn.seq, turn.outcome, turn.reason, counts
