"""The lag of a stage's partitions as that of the edges that lead to it."""

from __future__ import annotations

from dataclasses import replace

from streams.cli.flow import Behind, by_stage
from streams.why import Lag, Pace
from tests.unit.why.test_lag import BEHIND


def lag(agent: str, records: int, seconds: float, pace: Pace) -> Lag:
    return Lag(replace(BEHIND, agent=agent, records=records), seconds, pace)


def test_a_stage_is_as_far_behind_as_its_partitions_together_and_as_stuck_as_the_worst() -> None:
    found = by_stage(
        [
            lag("act", 0, 0.0, Pace.IDLE),
            lag("act", 5, 3.0, Pace.STUCK),
            lag("act", 7, 9.0, Pace.MOVING),
            lag("sort", 0, 0.0, Pace.IDLE),
            lag("sort", 2, 1.0, Pace.MOVING),
        ]
    )
    assert found == {
        "act": Behind(12, 9.0, Pace.STUCK),
        "sort": Behind(2, 1.0, Pace.MOVING),
    }
