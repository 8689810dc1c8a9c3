"""Any interleaving, duplication, crash and redrive gives one join with the same content."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings

from streams.joins.book import Cancelled, Incoming
from streams.joins.wire import Arrival, Cancel, Expectation, Expected
from tests.support.join_log import PARENTS, Log, Move, Shelf, calmly, logs, moves, run, told


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
    cancelled = {x.parent for x in log.records if x.cancelled is not None}
    for (parent, seq), what in log.expected.items():
        numbers = range(what.first, what.first + what.expected)
        if (
            parent not in cancelled
            and what.rule == "wait"
            and what.deadline_ms is None
            and all((parent, n) in done for n in numbers)
        ):
            (turn,) = [t for t in turns if t.ref.id == f"{parent}:{seq}"]
            assert (turn.outcome, turn.ref.done) == ("joined", what.expected)
            rows = asyncio.run(shelf.rows())
            assert all(rows[parent, n][0] == "done" for n in numbers)


@given(logs())
@settings(max_examples=200, deadline=None)
def test_a_fork_whose_job_is_cancelled_waits_no_more(log: Log) -> None:
    _, shelf = calmly(log)
    for parent, _, record, *_ in log.records:
        if isinstance(record, Cancel):
            join = shelf.joins[parent, record.seq]
            # Unless an operator brought it back: that is another step, and another wake.
            assert join.status != "open" or join.step > record.seq


def test_a_cancel_with_an_ancestor_does_not_close_a_shielded_jobs_join() -> None:
    call = f"{PARENTS[0]}/3"
    what = Expectation(
        stage="merge", forked_by="split", first=0, expected=1, rule="wait", shielded=call
    )
    for ordered, status in ((PARENTS[0], "open"), (call, "cancelled")):
        shelf = Shelf()
        order = Cancelled(ordered, "told")
        shelf.write([Incoming(call, (0, 0), Expected(1, 5, what))])
        shelf.write([Incoming(call, (0, 1), Cancel(1, ordered, b""), cancelled=order)])
        assert shelf.joins[call, 1].status == status
