"""Graceful stop: what is finished is committed, the rest is delivered again (invariant I10)."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once, assert_no_step_twice
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services


def test_case_14_a_stop_commits_what_finishes_within_the_grace_and_releases_the_rest(
    settings: Settings, tmp_path: Path
) -> None:
    grace_s = 3.0
    with Rig(settings, tmp_path, grace_s=grace_s) as rig:
        jobs = [Job(n=n, gate="soon" if n % 2 else "never") for n in range(100)]
        ids = rig.submit(jobs)
        rig.worker("take", "finish")
        worker = rig.worker("work")
        rig.wait(lambda: rig.target.waiting("soon") == 50, "handlers are running")
        rig.wait(lambda: rig.target.waiting("never") == 50, "handlers are running")
        stopped_at = time.monotonic()
        worker.signal(signal.SIGTERM)
        rig.target.open("soon")
        assert worker.ended() == 0
        took_s = time.monotonic() - stopped_at
        assert took_s >= grace_s, "it waited for the handlers that were still running"
        rig.wait_results(50)
        assert rig.target.waiting("never") == 0, "the others were cancelled"
        assert not rig.drained("work")

        rig.target.open("never")
        rig.worker("work")
        rig.wait_results(100)
        assert_all_done_once(rig, ids)


def test_a_stop_ends_with_its_last_handler_and_commits_what_that_finished(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, grace_s=3_600.0) as rig:
        ids = rig.submit([Job(n=n, gate="soon") for n in range(50)])
        rig.worker("take", "finish")
        worker = rig.worker("work")
        rig.wait(lambda: rig.target.waiting("soon") == 50, "handlers are running")
        worker.signal(signal.SIGTERM)
        rig.target.open("soon")
        assert worker.ended() == 0
        assert rig.drained("work"), "nothing is left for a successor"
        rig.wait_results(50)
        assert_all_done_once(rig, ids)


def test_case_14_a_stop_ends_though_a_handler_does_not_let_itself_be_cancelled(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, grace_s=0.5) as rig:
        jobs = [Job(n=n, gate="deaf", fault="deaf") for n in range(10)]
        rig.hand_off("work", [(job_id(j.n), 1, j) for j in jobs])
        worker = rig.worker("work")
        rig.wait(lambda: rig.target.waiting("deaf") == 10, "handlers are running")
        assert worker.stop() == 0
        assert rig.records("finish") == []
        rig.target.open("deaf")
        rig.worker("work")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert len(rig.records("finish")) == 10
