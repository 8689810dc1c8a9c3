"""Any interleaving, duplication, crash and redrive gives one join with the same content."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings

from streams.joins.wire import Arrival
from tests.support.join_log import Log, Move, Shelf, calmly, logs, moves, run, told


@given(logs(), moves)
@settings(max_examples=400, deadline=None)
def test_batches_crashes_and_zombies_change_nothing(log: Log, plan: list[Move]) -> None:
    wanted, calm = calmly(log)
    shelf = Shelf()
    got = asyncio.run(run(log, plan, shelf.apply))
    assert sorted(map(told, got)) == sorted(map(told, wanted))
    assert asyncio.run(shelf.rows()) == asyncio.run(calm.rows())


@given(logs())
@settings(max_examples=400, deadline=None)
def test_each_step_is_written_once_and_each_fork_joined_at_most_once(log: Log) -> None:
    turns, shelf = calmly(log)
    assert max(Counter((t.parent, t.seq) for t in turns).values(), default=1) == 1
    joined = Counter(t.ref.id for t in turns if t.outcome == "joined")
    assert max(joined.values(), default=1) == 1
    for (parent, seq), join in shelf.joins.items():
        steps = sorted(t.seq for t in turns if t.ref.id == f"{parent}:{seq}")
        # A reopened join writes three steps: it failed, waits again, is joined.
        assert steps == list(range(seq + 1, seq + 1 + len(steps)))
        assert (join.status == "joined") == (joined[f"{parent}:{seq}"] == 1)


@given(logs())
@settings(max_examples=400, deadline=None)
def test_a_fork_whose_branches_are_all_done_is_joined_whatever_the_order(log: Log) -> None:
    turns, shelf = calmly(log)
    done = {
        (x.parent, x.record.number)
        for x in log.records
        if isinstance(x.record, Arrival) and x.record.status.value == "done"
    }
    for (parent, seq), what in log.expected.items():
        numbers = range(what.first, what.first + what.expected)
        if (
            what.rule == "wait"
            and what.deadline_ms is None
            and all((parent, n) in done for n in numbers)
        ):
            (turn,) = [t for t in turns if t.ref.id == f"{parent}:{seq}"]
            assert (turn.outcome, turn.ref.done) == ("joined", what.expected)
            rows = asyncio.run(shelf.rows())
            assert all(rows[parent, n][0] == "done" for n in numbers)
