"""Workers join and leave with work in flight: partitions move, nothing is lost or doubled."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once, assert_each_effect_once, assert_no_step_twice
from tests.support.rig import Rig, job_id
from tests.support.worker import Worker

pytestmark = pytest.mark.services

WAVE = 200


def test_a_second_worker_joins_leaves_and_dies_with_work_in_flight(
    settings: Settings, tmp_path: Path
) -> None:
    chance = random.Random(7)
    stages = ("take", "work", "finish")
    # A dead slot's claims are waited for until their lease ends.
    with Rig(settings, tmp_path, grace_s=1.0, effect_lease_s=3.0) as rig:
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

        def held_by(worker: Worker, gate: str) -> int:
            return rig.target.waiting(gate, worker.process.pid)

        def probe(slot: str, beyond: int) -> bool:
            """Whether a slot has partitions: it writes states for small jobs."""
            ids.extend(rig.submit([Job(n=len(ids) + n, effect="repeatable") for n in range(8)]))
            return _by_slot(rig)[slot] > beyond

        first = rig.worker(*stages)
        wave("join")
        rig.wait(lambda: held_by(first, "join") == WAVE // 2, "work is in flight in slot 0")
        second = rig.worker(*stages, slot=1)
        rig.wait(lambda: held_by(second, "join") > 0, "slot 1 has taken over a part of it")
        assert held_by(first, "join") > 0
        rig.target.open("join")
        rig.wait_results(len(ids))

        wave("leave")
        rig.wait(lambda: held_by(second, "leave") > 0, "work is in flight in slot 1")
        assert second.stop() == 0
        rig.wait(lambda: held_by(first, "leave") == WAVE // 2, "slot 0 has taken over all of it")
        rig.target.open("leave")
        rig.wait_results(len(ids))

        before = _by_slot(rig)["1"]
        third = rig.worker(*stages, slot=1)
        rig.wait(lambda: probe("1", before), "slot 1 has partitions again")
        wave("kill")
        rig.wait(lambda: held_by(third, "kill") > 0, "work is in flight in slot 1")
        third.kill()
        rig.wait(lambda: held_by(first, "kill") == WAVE // 2, "slot 0 has taken over all of it")
        rig.target.open("kill")
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(len(ids)))


def test_case_22_what_a_full_map_kept_waiting_is_left_to_the_next_owner_of_its_partition(
    settings: Settings, tmp_path: Path
) -> None:
    """A full offset map keeps finished records waiting; their partition leaves meanwhile."""
    jobs = [Job(n=n, gate="" if n % 2 else "hold") for n in range(600)]
    with Rig(
        settings, tmp_path, partitions=2, offset_map_max_bytes=128, revoke_timeout_s=0.5
    ) as rig:
        rig.hand_off("work", [(job_id(j.n), 1, j) for j in jobs])
        rig.worker("work")
        rig.wait(lambda: rig.target.waiting("hold") == 300, "every second job is at work")
        rig.wait(lambda: _maps_are_full(rig), "finished records wait for room in the map")
        assert len(rig.records("finish")) < 300
        second = rig.worker("work", slot=1)
        rig.wait(lambda: rig.target.waiting("hold", second.process.pid) > 0, "one has moved")
        rig.target.open("hold")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert len(rig.records("finish")) == len(jobs)
        assert min(_by_slot(rig)[slot] for slot in "01") > 100, "each had a partition"


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
        before = _by_slot(rig)["0"]

        def works_again() -> bool:
            ids.extend(rig.submit([Job(n=len(ids) + n) for n in range(8)]))
            return _by_slot(rig)["0"] > before

        rig.wait(works_again, "the zombie is a worker again")
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
        assert zombie.stop() == 0


def _maps_are_full(rig: Rig) -> bool:
    return all(len(metadata) > 120 for _, metadata in rig.committed("work").values())


def _by_slot(rig: Rig) -> Counter[str]:
    """How many states each slot wrote."""
    return Counter((s.worker or "").partition(".")[0] for s in rig.states())
