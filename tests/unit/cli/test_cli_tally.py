"""The demo's sum: each way in which it may not add up is named."""

from dataclasses import replace

import pytest

from streams.cli.tally import DeskCount, Kill, Tally, kill_marks

GOOD = Tally(
    submitted=10,
    done=8,
    failed=2,
    seconds=2.0,
    p50_s=0.1,
    p95_s=0.2,
    desk=DeskCount(calls=7, effects=6, doubles=0),
    acting=6,
    settled=6,
    unsettled=0,
    doubled_steps=0,
    skipped=0,
)


def test_a_sum_that_adds_up_has_no_fault() -> None:
    assert GOOD.faults() == []
    assert GOOD.jobs_per_s == 5.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"done": 7}, "1 jobs are not finished"),
        ({"done": 9}, "more jobs"),
        ({"stalled": True}, "Nothing moved"),
        ({"doubled_steps": 3}, "3 steps were committed more than once"),
        ({"desk": DeskCount(calls=9, effects=6, doubles=1)}, "1 effects twice"),
        ({"desk": DeskCount(calls=9, effects=5, doubles=0)}, "5 effects for 6 jobs"),
        ({"settled": 7}, "7 effects for 6 jobs"),
        ({"audit_findings": 1, "audit": "audit: step_doubled 1"}, "step_doubled 1"),
        ({"unsettled": 1}, "1 effects are not settled"),
        ({"kills_wanted": 1}, "Only 0 of 1 kills"),
        ({"kills_wanted": 1, "kills": (Kill(1, 10, 0),)}, "met no work in flight"),
    ],
)
def test_each_fault_is_named(change: dict[str, object], said: str) -> None:
    faults = replace(GOOD, **change).faults()  # type: ignore[arg-type]
    assert len(faults) == 1
    assert said in faults[0]


def test_calls_that_the_desk_recognised_are_no_fault() -> None:
    assert replace(GOOD, desk=DeskCount(calls=60, effects=6, doubles=0)).faults() == []


@pytest.mark.parametrize("kills", [1, 2, 3, 10])
def test_kills_are_spread_over_the_work(kills: int) -> None:
    marks = kill_marks(kills)
    assert len(marks) == kills
    assert marks == sorted(set(marks))
    assert marks[0] > 0
    assert marks[-1] <= 0.75


def test_no_kills_have_no_marks() -> None:
    assert kill_marks(0) == []
