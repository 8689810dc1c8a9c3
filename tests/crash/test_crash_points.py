"""Killed at each named point of the commit protocol: the restart makes it exactly once."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streams import topics
from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once
from tests.support.rig import Rig

pytestmark = pytest.mark.services

JOBS = 300


POINTS = (
    "poll.delivered",
    "commit.selected",
    "commit.produced",
    "commit.offsets_sent",
    "commit.committed",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_at_a_point_of_the_protocol_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path, point: str
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64, max_commit_records=20) as rig:
        ids = rig.submit([Job(n=n, wait_ms=n * 7 % 30) for n in range(JOBS)])
        # The sixth pass: some transactions are through, others are to come.
        worker = rig.worker(crash_point=f"{point}:6")
        assert worker.ended() == -signal.SIGKILL, worker.log[-4000:]
        assert len(rig.states()) > 0, "some steps were committed before the kill"
        assert rig.finished() < JOBS, "work was in flight at the kill"
        assert not rig.drained("take", "work")
        rig.worker()
        rig.wait_results(JOBS)
        assert_all_done_once(rig, ids)


def test_offsets_held_by_a_dead_workers_transaction_do_not_look_like_missing_ones(
    settings: Settings, tmp_path: Path
) -> None:
    """`topics apply` seeds what has no offset: here that would do everything again."""
    with Rig(settings, tmp_path, max_commit_records=20) as rig:
        ids = rig.submit([Job(n=n) for n in range(JOBS)])
        worker = rig.worker(crash_point="commit.offsets_sent:4")
        assert worker.ended() == -signal.SIGKILL
        with ThreadPoolExecutor(1) as pool:
            planned = pool.submit(topics.plan, rig.flow, rig.settings)
            # Its successor ends the transaction that is still open.
            rig.worker()
            assert planned.result(90).seed == ()
        rig.wait_results(JOBS)
        assert_all_done_once(rig, ids)


def test_a_worker_that_is_killed_at_each_point_in_turn_still_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64, max_commit_records=20) as rig:
        ids = rig.submit([Job(n=n, wait_ms=n * 7 % 30) for n in range(JOBS)])
        for point in (
            "commit.committed:1",
            "commit.offsets_sent:2",
            "commit.produced:3",
            "commit.committed:4",
        ):
            worker = rig.worker(crash_point=point)
            assert worker.ended() == -signal.SIGKILL, worker.log[-4000:]
            assert rig.finished() < JOBS, "work was in flight at the kill"
        rig.worker()
        rig.wait_results(JOBS)
        assert_all_done_once(rig, ids)
