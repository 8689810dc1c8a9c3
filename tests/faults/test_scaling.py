"""Workers come and go under load, and one that died is back soon."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import (
    assert_all_done_once,
    assert_each_effect_once,
    assert_projection_is_the_fold,
)
from tests.support.rig import Rig

pytestmark = pytest.mark.services

#: A promise of 5 s; here the machine may be busy with other things.
RESTART_S = 30.0


@contextmanager
def load(rig: Rig, make: Callable[[int], Job], every_s: float = 0.25) -> Iterator[list[str]]:
    """Submits ten jobs every `every_s` for as long as the block runs; the ids so far."""
    ids: list[str] = []
    over = Event()

    def feed() -> None:
        while not over.wait(every_s):
            ids.extend(rig.submit([make(len(ids) + n) for n in range(10)]))

    feeder = Thread(target=feed)
    feeder.start()
    try:
        yield ids
    finally:
        over.set()
        feeder.join()


def _by_slot(rig: Rig) -> Counter[str]:
    return Counter((s.worker or "").partition(".")[0] for s in rig.states() if s.stage == "work")


def test_one_to_three_to_one_workers_under_load_lose_and_double_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    """Handlers take 0 to 3 s and file something at the end, as those of the mail flow do. Counted
    by the topics and by the target's own record."""
    chance = random.Random(11)

    def make(n: int) -> Job:
        return Job(n=n, wait_ms=chance.uniform(0, 3_000), effect="repeatable")

    # A claim of an attempt that was cancelled or lost is waited for until its lease ends.
    with Rig(settings, tmp_path, partitions=6, effect_lease_s=5.0) as rig:
        first = rig.worker()
        with load(rig, make) as ids:
            rig.wait(lambda: _by_slot(rig)["0"] > 50, "slot 0 works")
            others = [rig.worker(slot=1), rig.worker(slot=2)]
            rig.wait(
                lambda: min(_by_slot(rig)[slot] for slot in "012") > 50, "all three slots work"
            )
            for other in others:
                assert other.stop() == 0
            left = _by_slot(rig)
            assert rig.finished() < len(ids), "work was in flight when they left"
            rig.wait(
                lambda: _by_slot(rig)["0"] > left["0"] + 100, "slot 0 works for all partitions"
            )
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(len(ids)))
        assert_projection_is_the_fold(rig)
        assert first.stop() == 0


def test_a_worker_that_was_killed_commits_again_soon_after_its_restart(
    settings: Settings, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with Rig(settings, tmp_path) as rig:
        worker = rig.worker()
        took_s = []
        with load(rig, lambda n: Job(n=n, wait_ms=n % 50)) as ids:
            for _ in range(3):
                seen = len(rig.states())
                rig.wait(lambda: len(rig.states()) > seen + 100, "the stream runs")  # noqa: B023
                worker.kill()
                known = {s.worker for s in rig.states()}
                started_at = time.monotonic()
                worker = rig.worker()
                rig.wait(
                    lambda: any(s.worker not in known for s in rig.states()),  # noqa: B023
                    "the restarted worker commits",
                )
                took_s.append(round(time.monotonic() - started_at, 2))
        print(f"first new commit after {took_s} s")
        record_property("first_commit_s", took_s)
        assert max(took_s) < RESTART_S
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
