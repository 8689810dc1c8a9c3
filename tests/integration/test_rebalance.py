"""Workers join and leave with work in flight: partitions move, nothing is lost or doubled."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once, assert_each_effect_once
from tests.support.rig import Rig

pytestmark = pytest.mark.services

JOBS = 2_400


def test_a_second_worker_joins_leaves_and_dies_with_work_in_flight(
    settings: Settings, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with Rig(settings, tmp_path, max_in_flight_records=60, max_commit_records=50) as rig:
        rig.worker()
        ids = rig.submit(
            [Job(n=n, wait_ms=chance.uniform(20, 150), effect="repeatable") for n in range(JOBS)]
        )
        rig.wait(lambda: rig.finished() > 100, "the stream runs")

        second = rig.worker("take", "work", "finish", slot=1)
        rig.wait(lambda: _by_slot(rig)["1"] > 100, "partitions moved to slot 1, which works")
        assert rig.finished() < JOBS, "work was in flight at the leave"
        assert second.stop() == 0

        third = rig.worker("take", "work", "finish", slot=1)
        seen = _by_slot(rig)["1"]
        rig.wait(lambda: _by_slot(rig)["1"] > seen + 50, "slot 1 works again")
        third.kill()
        assert rig.finished() < JOBS, "work was in flight at the kill"

        rig.wait(lambda: rig.finished() >= JOBS, "slot 0 takes over and finishes")
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(JOBS))


def test_a_worker_that_was_stopped_past_its_session_is_a_harmless_zombie(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        ids = rig.submit([Job(n=n, gate="long") for n in range(100)])
        zombie = rig.worker()
        rig.wait(lambda: rig.target.waiting("long") == 100, "all jobs are at work in slot 0")
        # Its answers arrive while it is stopped; when it wakes, its partitions are somebody else's.
        zombie.signal(signal.SIGSTOP)
        rig.target.open("long")
        rig.worker(slot=1)
        rig.wait(lambda: rig.finished() == 100, "slot 1 has taken over and finished")
        assert _by_slot(rig)["1"] >= 200
        zombie.signal(signal.SIGCONT)
        more = rig.submit([Job(n=n) for n in range(100, 200)])
        rig.wait(lambda: rig.finished() >= 200, "the new jobs are done")
        assert_all_done_once(rig, [*ids, *more])
        rig.wait(lambda: zombie.running, "the zombie is a worker again")
        assert zombie.stop() == 0


def _by_slot(rig: Rig) -> Counter[str]:
    """How many states each slot wrote."""
    return Counter((s.worker or "").partition(".")[0] for s in rig.states())
