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

WAVE = 200


def test_a_second_worker_joins_leaves_and_dies_with_work_in_flight(
    settings: Settings, tmp_path: Path
) -> None:
    chance = random.Random(7)
    stages = ("take", "work", "finish")
    with Rig(settings, tmp_path, grace_s=1.0) as rig:
        ids: list[str] = []

        def wave(gate: str) -> None:
            """Half of the jobs wait at the gate: they are certainly in flight until it opens."""
            jobs = [
                Job(
                    n=len(ids) + n,
                    gate=gate if n % 2 else "",
                    wait_ms=chance.uniform(0, 100),
                    effect="repeatable",
                )
                for n in range(WAVE)
            ]
            ids.extend(rig.submit(jobs))

        def all_wait_at(gate: str) -> bool:
            return rig.target.waiting(gate) == WAVE // 2

        def probe(slot: str, beyond: int) -> bool:
            """Whether a slot has partitions: it writes states for small jobs."""
            ids.extend(rig.submit([Job(n=len(ids) + n, effect="repeatable") for n in range(8)]))
            return _by_slot(rig)[slot] > beyond

        rig.worker(*stages)
        wave("join")
        rig.wait(lambda: all_wait_at("join"), "work is in flight in slot 0")
        second = rig.worker(*stages, slot=1)
        rig.wait(lambda: probe("1", 0), "partitions moved to slot 1")
        rig.wait(lambda: all_wait_at("join"), "what slot 0 gave up is in flight in slot 1")
        rig.target.open("join")
        rig.wait_results(len(ids))

        wave("leave")
        rig.wait(lambda: all_wait_at("leave"), "work is in flight in both slots")
        assert second.stop() == 0
        rig.wait(lambda: all_wait_at("leave"), "what slot 1 gave up is in flight in slot 0")
        rig.target.open("leave")
        rig.wait_results(len(ids))

        before = _by_slot(rig)["1"]
        third = rig.worker(*stages, slot=1)
        rig.wait(lambda: probe("1", before), "partitions moved to slot 1 again")
        wave("kill")
        rig.wait(lambda: all_wait_at("kill"), "work is in flight in both slots")
        third.kill()
        assert rig.finished() < len(ids)
        rig.wait(lambda: all_wait_at("kill"), "the dead one's work is in flight in slot 0")
        rig.target.open("kill")
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(len(ids)))


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
        rig.wait_results(100)
        assert _by_slot(rig)["1"] >= 200
        zombie.signal(signal.SIGCONT)
        more = rig.submit([Job(n=n) for n in range(100, 200)])
        rig.wait_results(200)
        assert_all_done_once(rig, [*ids, *more])
        rig.wait(lambda: zombie.running, "the zombie is a worker again")
        assert zombie.stop() == 0


def _by_slot(rig: Rig) -> Counter[str]:
    """How many states each slot wrote."""
    return Counter((s.worker or "").partition(".")[0] for s in rig.states())
