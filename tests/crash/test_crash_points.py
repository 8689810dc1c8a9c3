"""Killed at each named point of a worker's way, from poll to commit: the restart makes it exactly
once. (The other points: `tests/unit/test_crash_points.py` says where.)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schemas.state import Status
from streams import topics
from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import (
    assert_all_done_once,
    assert_each_effect_once,
    assert_no_step_twice,
    assert_projection_is_the_fold,
)
from tests.support.rig import Rig, job_id
from tests.support.worker import killed

pytestmark = pytest.mark.services

JOBS = 300
#: Every so many jobs one is rejected: its dead letter is part of the commit.
REJECTED = 12


def job(n: int) -> Job:
    """A job with an effect, at work for up to 30 ms."""
    fault = "" if n % REJECTED else "reject"
    return Job(n=n, wait_ms=n * 7 % 30, effect="repeatable", fault=fault)


@pytest.mark.parametrize(
    "point",
    [
        # Some transactions are through, others are to come.
        "poll.delivered:6",
        "suspect.claimed:4",
        "stage.decoded:200",
        "stage.handled:10",
        "commit.selected:6",
        "commit.produced:6",
        "commit.offsets_sent:6",
        "commit.offsets_sent:7",
        "commit.committed:6",
    ],
)
def test_a_worker_killed_at_a_point_of_the_protocol_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path, point: str
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64, max_commit_records=20) as rig:
        ids = rig.submit([job(n) for n in range(JOBS)])
        rejected = ids[::REJECTED]
        killed(rig.worker(crash_point=point))
        assert len(rig.states()) > 0, "some steps were committed before the kill"
        assert rig.finished() < JOBS - len(rejected), "work was in flight at the kill"
        assert not rig.drained("take", "work")
        if point.startswith("suspect"):
            taken = sum(s.seq == 1 for s in rig.states())
            assert len(rig.sql("SELECT 1 FROM claims")) > taken, "claimed, and not done"
        rig.worker()
        rig.wait_results(JOBS - len(rejected))
        assert_all_done_once(rig, ids, rejected=rejected)
        assert_each_effect_once(rig, range(JOBS))
        assert_projection_is_the_fold(rig)


def test_a_worker_killed_while_it_hands_over_its_partitions_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    """What is finished is committed, nothing is given up yet. It stays away, so the other gets all
    partitions when its session is over."""
    gated = 40
    jobs = [Job(n=n, effect="repeatable", gate="" if n >= gated else "shut") for n in range(JOBS)]
    with Rig(settings, tmp_path) as rig:
        rig.hand_off("work", [(job_id(j.n), 1, j) for j in jobs])
        doomed = rig.worker("work", "projector", crash_point="poll.revoked")
        rig.wait(lambda: rig.target.waiting("shut") == gated, "some are at work")
        rig.wait(lambda: len(rig.records("finish")) == JOBS - gated, "the others are handed on")
        doomed.expected_to_run = False
        rig.worker("work", "projector", slot=1)
        killed(doomed)
        assert not rig.drained("work"), "work was in flight at the kill"
        rig.target.open("shut")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        done = {s.trace_id for s in rig.states() if s.status is Status.RUNNING}
        assert done == {job_id(n) for n in range(JOBS)}
        assert len(rig.records("finish")) == JOBS
        assert_each_effect_once(rig, range(JOBS))
        assert_projection_is_the_fold(rig)


def test_offsets_held_by_a_dead_workers_transaction_do_not_look_like_missing_ones(
    settings: Settings, tmp_path: Path
) -> None:
    """`topics apply` seeds what has no offset: here that would do everything again."""
    with Rig(settings, tmp_path, max_commit_records=20) as rig:
        ids = rig.submit([Job(n=n) for n in range(JOBS)])
        killed(rig.worker(crash_point="commit.offsets_sent:4"))
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
    """From the second life on the journal is on."""
    with Rig(settings, tmp_path, max_in_flight_records=64, max_commit_records=20) as rig:
        ids = rig.submit([job(n) for n in range(JOBS)])
        rejected = ids[::REJECTED]
        for point in (
            "commit.committed:1",
            "commit.offsets_sent:2",
            "commit.produced:3",
            "commit.committed:4",
        ):
            killed(rig.worker(crash_point=point))
            assert rig.finished() < JOBS - len(rejected), "work was in flight at the kill"
        rig.worker()
        rig.wait_results(JOBS - len(rejected))
        assert_all_done_once(rig, ids, rejected=rejected)
        assert_each_effect_once(rig, range(JOBS))
