"""Timekeeper and dispatcher are killed at their points, and run twice: each job goes on once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from schemas import headers as h
from schemas.state import Status
from streams.config import Settings
from tests.support.judge import doubles, steps_by_job
from tests.support.patient import APP, Ask, flow
from tests.support.rig import Rig, job_id
from tests.support.worker import killed

pytestmark = pytest.mark.services

JOBS = 200


def submit_waiting(rig: Rig, wait_ms: int) -> None:
    rig.submit([Ask(n=n, good_at=2, wait_ms=wait_ms) for n in range(JOBS)])


def wait_committed(rig: Rig) -> None:
    rig.wait(lambda: len(rig.log(timers_topic(rig))) >= JOBS, "all waits are committed")


def timers_topic(rig: Rig) -> str:
    return rig.settings.names.timers_topic


def assert_each_job_once(rig: Rig) -> None:
    """One wait, then done: by the states, by the sink, and by the target's record of runs."""
    rig.wait(lambda: pending(rig) == 0, "no timer is pending")
    rig.wait_drained()
    assert Counter(r.job for r in rig.records("done")) == Counter(job_id(n) for n in range(JOBS))
    assert doubles((s.trace_id, s.seq) for s in rig.states()) == {}
    for trace_id, steps in steps_by_job(rig.states()).items():
        told = [(s.seq, s.status, s.attempts) for s in steps]
        assert told == [(1, Status.WAITING, 1), (2, Status.DONE, 2)], trace_id
    assert Counter(rig.target.calls) == Counter(
        (f"run {n} attempt {attempt}", n) for n in range(JOBS) for attempt in (1, 2)
    )


def pending(rig: Rig) -> int:
    return len(rig.sql("SELECT 1 FROM timers"))


def returned(rig: Rig) -> int:
    return sum(1 for r in rig.records("ask") if r.header(h.TIMER) is not None)


def test_a_timekeeper_and_a_dispatcher_killed_at_each_of_their_points_repeat_and_lose_no_job(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        rig.worker("ask", app=APP)
        submit_waiting(rig, 1_000)
        wait_committed(rig)

        def kill_at(point: str) -> tuple[int, int]:
            """Timers that are pending after the kill, and records that were returned until then."""
            killed(rig.worker("timers", app=APP, crash_point=point))
            return pending(rig), returned(rig)

        assert kill_at("timers.stored") == (0, 0), "stored, but not committed"
        waiting, sent = kill_at("timers.taken")
        assert waiting > 0, "taken, but still there"
        assert (sent, rig.records("done")) == (0, []), "all jobs were in flight at the kill"
        waiting, sent = kill_at("timers.dispatched")
        assert waiting >= sent > 0, "returned, but the rows are still there"
        waiting, again = kill_at("timers.deleted")
        assert waiting > 0, "deleted, but not committed"
        assert again > sent
        rig.worker("timers", app=APP)
        rig.wait_results(JOBS)
        assert_each_job_once(rig)
        assert returned(rig) > JOBS, "some came more than once, and ran once"
        [skipped] = rig.sql("SELECT records FROM skips WHERE reason = 'duplicate'")
        assert skipped["records"] >= returned(rig) - JOBS


def test_two_dispatchers_of_which_one_is_killed_let_each_job_go_on_once(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        rig.worker("ask", app=APP)
        submit_waiting(rig, 3_000)
        wait_committed(rig)
        doomed = rig.worker("timers", app=APP, crash_point="timers.deleted")
        doomed.expected_to_run = False
        rig.worker("timers", app=APP, slot=1)
        rig.worker("timers", app=APP, slot=2)
        rig.wait_results(JOBS)
        assert_each_job_once(rig)


def test_a_stage_killed_while_returned_records_are_in_work_does_each_once(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow, max_commit_records=20) as rig:
        rig.worker("timers", app=APP)
        worker = rig.worker("ask", app=APP)
        submit_waiting(rig, 3_000)
        wait_committed(rig)
        worker.kill()
        # Its second commit holds returned records only: the claims are made, the step is not.
        killed(rig.worker("ask", app=APP, crash_point="commit.produced:2"))
        assert len(rig.sql("SELECT 1 FROM claims WHERE seq = 2")) > 0
        assert len(rig.records("done")) < JOBS
        rig.worker("ask", app=APP)
        rig.wait_results(JOBS)
        rig.wait_drained()
        assert Counter(r.job for r in rig.records("done")) == Counter(
            job_id(n) for n in range(JOBS)
        )
        assert doubles((s.trace_id, s.seq) for s in rig.states()) == {}
