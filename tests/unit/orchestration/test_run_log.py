"""Any batching, duplication, crash and redrive gives each run the same steps, once."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import HealthCheck, given, settings

from tests.support.join_log import Move, moves
from tests.support.run_log import Log, Shelf, calmly, logs, run, told

examples = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(logs(), moves)
@examples
def test_batches_crashes_and_zombies_change_nothing(log: Log, plan: list[Move]) -> None:
    wanted, calm = asyncio.run(calmly(log))
    shelf = Shelf()
    got = asyncio.run(run(log, plan, shelf.apply))
    assert told(got) == told(wanted)
    assert shelf.rows() == calm.rows()


@given(logs())
@examples
def test_each_step_is_written_once_and_without_a_gap(log: Log) -> None:
    turns, shelf = asyncio.run(calmly(log))
    assert max(Counter((t.parent, t.seq) for t in turns).values(), default=1) == 1
    children = Counter((t.parent, a.child) for t in turns for a in t.asked if a.child is not None)
    assert max(children.values(), default=1) == 1
    for (parent, seq), journal in shelf.runs.items():
        steps = [t.seq for t in turns if (t.parent, t.run) == (parent, seq)]
        assert steps == list(range(seq + 1, journal.step + 1))
        assert [t.children for t in turns if t.run == seq and t.parent == parent][-1:] in (
            [],
            [journal.first_child + journal.calls],
        )
