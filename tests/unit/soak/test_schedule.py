"""The same seed gives the same schedule, and every kind of fault has its turn."""

from __future__ import annotations

from itertools import pairwise

from tests.soak import faults
from tests.soak.schedule import KINDS, Fault, schedule


def test_a_seed_is_a_schedule() -> None:
    assert schedule(7, 600) == schedule(7, 600) != schedule(8, 600)
    assert schedule(7, 60)[:2] == [
        Fault(at_s=9.86, kind="kafka_away", lasts_s=2.64),
        Fault(at_s=18.17, kind="postgres_network_slow", lasts_s=9.66),
    ], "whoever changes the schedule gives the seeds on record another meaning"


def test_faults_come_every_5_to_20_seconds_and_all_kinds_do() -> None:
    for seed in range(20):
        planned = schedule(seed, 1_200)
        gaps = [b.at_s - a.at_s for a, b in pairwise(planned)]
        assert min(gaps) >= 5
        assert sum(gaps) / len(gaps) < 20
        assert {fault.kind for fault in planned} == set(KINDS)


def test_what_is_hurt_is_left_alone_for_a_while() -> None:
    for seed in range(20):
        until: dict[str, float] = {}
        for fault in schedule(seed, 1_200):
            for resource in KINDS[fault.kind].resources:
                assert until.get(resource, 0.0) <= fault.at_s
                until[resource] = fault.at_s + fault.lasts_s


def test_a_short_lane_has_short_faults() -> None:
    assert max(f.lasts_s for f in schedule(1, 60, gap_s=(2, 5), longest_s=6)) <= 6


def test_every_kind_can_be_done() -> None:
    assert all(callable(faults.doing(kind)) for kind in KINDS)
