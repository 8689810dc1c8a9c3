"""Records of one job stay in order, whatever their handlers take, also over a SIGKILL."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice, in_order_per_job
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

JOBS, RECORDS = 40, 12


def test_records_of_one_job_stay_in_order_over_a_kill(settings: Settings, tmp_path: Path) -> None:
    chance = random.Random(5)
    steps = [
        # The last record of each job waits, so that work is in flight at the kill.
        (
            job_id(n),
            seq,
            Job(n=n, wait_ms=chance.choice((0, 0, 10, 100)), gate="last" if seq == RECORDS else ""),
        )
        for seq in range(1, RECORDS + 1)
        for n in range(JOBS)
    ]
    with Rig(settings, tmp_path) as rig:
        rig.hand_off("work", steps)
        worker = rig.worker("work")
        rig.wait(lambda: len(rig.records("finish")) > len(steps) // 3, "a third is done")
        worker.kill()
        assert len(rig.records("finish")) < len(steps), "work was in flight at the kill"
        rig.target.open("last")
        rig.worker("work")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        expected = {job_id(n): list(range(2, RECORDS + 2)) for n in range(JOBS)}
        assert in_order_per_job(rig.records("finish")) == expected
        states: dict[str, list[int]] = {}
        for state in rig.states():
            states.setdefault(state.trace_id, []).append(state.seq)
        assert states == expected


def test_a_record_that_waits_for_a_retry_holds_back_its_own_job_only(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, partitions=1) as rig:
        first, later = Job(n=0, fault="retry"), Job(n=0)
        held = [
            (job_id(0), 1, first),
            (job_id(0), 2, later),
            (job_id(0), 3, Job(n=0, fault="raise")),
        ]
        others = [(job_id(n), 1, Job(n=n)) for n in range(1, 20)]
        rig.hand_off("work", [*held, *others])
        rig.worker("work")
        rig.wait_drained("work")
        story = [(s.seq, s.status.value) for s in rig.states() if s.trace_id == job_id(0)]
        assert story == [(2, "running"), (3, "running"), (4, "failed")]
        order = [r.job for r in rig.records("finish")]
        assert order[-2:] == [job_id(0)] * 2, "the others did not wait"
        assert len(order) == 21


def test_a_slow_job_holds_up_neither_the_others_nor_their_commits(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, partitions=1) as rig:
        rig.hand_off(
            "work", [(job_id(n), 1, Job(n=n, gate="" if n else "slow")) for n in range(200)]
        )
        rig.worker("work")
        rig.wait(lambda: len(rig.records("finish")) == 199, "all others are handed on")
        assert rig.target.waiting("slow") == 1
        assert rig.committed("work")[0][0] == 0, "the head waits for the slow job"
        rig.target.open("slow")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert len(rig.records("finish")) == 200
