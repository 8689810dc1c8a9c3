"""The offset map over crashes: what finished out of order is neither run again nor forgotten."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.commits import Commit, commits_of
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

MAP_BYTES = 128


def test_two_kills_around_a_short_first_poll_double_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    """The map of the first life must be in the first commit of the second life as well, though that
    life has read only the first few records."""
    jobs = 200
    with Rig(settings, tmp_path, partitions=1) as rig:
        rig.hand_off(
            "work", [(job_id(n), 1, Job(n=n, gate="" if n % 2 else "even")) for n in range(jobs)]
        )
        first = rig.worker("work")
        rig.wait(lambda: len(rig.records("finish")) == jobs // 2, "every second record is done")
        assert rig.target.waiting("even") == jobs // 2
        first.kill()
        head, before = rig.committed("work")[0]
        assert head == 0
        assert len(before) > 200, "a range for every second record"

        rig.target.open("even")
        second = rig.worker("work", max_in_flight_records=4, crash_point="commit.committed:1")
        assert second.ended() == -9
        done = len(rig.records("finish"))
        assert jobs // 2 < done < jobs // 2 + 20, "the second life made one small commit"
        assert not rig.drained("work")

        rig.worker("work")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert len(rig.records("finish")) == jobs
        _assert_heads_never_fall(rig)


def test_case_22_a_full_map_makes_records_wait_and_still_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    jobs, chance = 2_000, random.Random(9)
    with Rig(settings, tmp_path, partitions=1, offset_map_max_bytes=MAP_BYTES) as rig:
        rig.hand_off(
            "work",
            [
                (job_id(n), 1, Job(n=n, gate="" if n else "head", wait_ms=chance.uniform(0, 400)))
                for n in range(jobs)
            ],
        )
        worker = rig.worker("work")
        rig.wait(lambda: rig.target.waiting("head") == 1, "the head is at work")
        rig.wait(lambda: len(rig.committed("work")[0][1]) > MAP_BYTES - 8, "the map is full")
        rig.wait(lambda: len(rig.records("finish")) > 50, "some are handed on")
        worker.kill()
        assert rig.committed("work")[0][0] == 0
        assert len(rig.records("finish")) < jobs, "work was in flight at the kill"
        rig.worker("work")
        rig.wait(lambda: rig.target.waiting("head") == 1, "the head is at work again")
        rig.target.open("head")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert len(rig.records("finish")) == jobs
        lengths = [len(c.metadata) for c in _assert_heads_never_fall(rig)]
        assert MAP_BYTES - 8 < max(lengths) <= MAP_BYTES


def test_a_map_as_long_as_the_broker_allows_can_be_committed(
    settings: Settings, tmp_path: Path
) -> None:
    """Every second record waits, so that the map needs more room than there is."""
    jobs = [Job(n=n, gate="" if n % 2 else "even") for n in range(3_400)]
    limit = settings.offset_map_max_bytes
    with Rig(settings, tmp_path, partitions=1) as rig:
        rig.hand_off("work", [(job_id(j.n), 1, j) for j in jobs])
        rig.worker("work")
        rig.wait(lambda: len(rig.committed("work")[0][1]) > limit - 8, "the map is full")
        handed_on = len(rig.records("finish"))
        assert handed_on < len(jobs) // 2, "what has no room in the map waits"
        rig.target.open("even")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert len(rig.records("finish")) == len(jobs)


def _assert_heads_never_fall(rig: Rig) -> list[Commit]:
    commits = commits_of(rig.settings.kafka_bootstrap_servers, rig.group("work"))
    heads = [c.offset for c in commits]
    assert heads == sorted(heads)
    return commits
