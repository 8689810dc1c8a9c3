"""Retries on the real services: what fails is tried again, at most as often as its policy says,
whoever is killed or stopped meanwhile; and it holds nobody up."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas import headers as h
from schemas.state import JobState, Status
from streams.config import Settings
from tests.support import flows, forked
from tests.support.judge import steps_by_job
from tests.support.patient import APP, ATTEMPTS, HELD_APP, Ask, flow, held_flow
from tests.support.rig import Rig, job_id
from tests.support.worker import environment

pytestmark = pytest.mark.services


def runs(rig: Rig, n: int) -> int:
    """How often the handler of job `n` ran, by the target's own record."""
    return sum(1 for _, number in rig.target.calls if number == n)


def last_state(rig: Rig, n: int) -> JobState | None:
    steps = steps_by_job(rig.states()).get(job_id(n))
    return steps[-1] if steps else None


def is_waiting(rig: Rig, n: int, attempts: int) -> bool:
    state = last_state(rig, n)
    return (
        state is not None
        and (state.status, state.attempts) == (Status.WAITING, attempts)
        and state.wakes_at is not None
    )


def test_case_2_a_record_whose_handler_raises_is_retried_then_dead_lettered(
    settings: Settings, tmp_path: Path
) -> None:
    """faust-streaming/faust#189 #315 #527: a raise skips the record."""
    with Rig(settings, tmp_path) as rig:
        rig.worker()
        jobs = [flows.Job(n=n, fault="raise" if n == 150 else "") for n in range(300)]
        ids = rig.submit(jobs)
        rig.wait_results(299)
        rig.wait(lambda: rig.dead_letters("work"), "the failing record is dead-lettered")
        rig.wait_drained()
        assert Counter(r.job for r in rig.records("done")) == Counter(set(ids) - {ids[150]})
        [letter] = rig.dead_letters("work")
        assert letter.job == ids[150]
        assert letter.header(h.DLQ_DELIVERY_COUNT) == b"3"
        assert rig.target.calls == []


def test_case_13_a_failed_record_is_not_lost_when_later_ones_commit_and_the_worker_dies(
    settings: Settings, tmp_path: Path
) -> None:
    """ag2ai/faststream#2618: a failed record is skipped once a later one commits."""
    with Rig(settings, tmp_path, flow, partitions=1) as rig:
        worker = rig.worker(app=APP)
        # The first of the partition fails in place and then stays at the gate; all others commit.
        rig.submit(
            [Ask(n=0, good_at=2, how="raise", gate="slow"), *(Ask(n=n) for n in range(1, 200))]
        )
        rig.wait_results(199)
        assert runs(rig, 0) >= 1
        assert not rig.drained("ask")
        worker.kill()
        rig.worker(app=APP)
        rig.target.open("slow")
        rig.wait_results(200)
        rig.wait_drained()
        assert Counter(r.job for r in rig.records("done")) == Counter(job_id(n) for n in range(200))


def test_a_long_wait_is_a_visible_step_and_its_job_goes_on_when_it_is_due(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        rig.worker(app=APP)
        rig.submit([Ask(n=0, good_at=2, wait_ms=6_000), Ask(n=1)])
        rig.wait(lambda: is_waiting(rig, 0, 1), "job 0 waits")
        waiting = last_state(rig, 0)
        assert waiting is not None
        assert waiting.wakes_at is not None
        assert waiting.wakes_at - waiting.updated_at == timedelta(seconds=6)
        assert rig.drained("ask"), "nothing is held while it waits"
        rig.wait(
            lambda: rig.sql("SELECT 1 FROM jobs WHERE wakes_at = %s", waiting.wakes_at),
            "the projection shows when it wakes",
        )
        shown = _show(rig, 0)
        assert f"{waiting.wakes_at:%H:%M:%S}" in shown
        assert "waiting" in shown
        rig.wait_results(2)
        done = steps_by_job(rig.states())[job_id(0)]
        assert [(s.seq, s.status, s.attempts) for s in done] == [
            (1, Status.WAITING, 1),
            (2, Status.DONE, 2),
        ]
        assert done[1].timing is not None
        came_us = done[1].timing.produced_us
        late = datetime.fromtimestamp(came_us / 1e6, UTC) - waiting.wakes_at
        assert timedelta(0) <= late < timedelta(seconds=10)
        rig.wait(
            lambda: rig.sql("SELECT 1 FROM jobs WHERE status = 'done' AND wakes_at IS NULL"),
            "a job that is awake shows no time",
        )


def _show(rig: Rig, n: int) -> str:
    shown = forked.run("streams.cli", "jobs", "show", job_id(n), env=environment(rig.settings))
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def test_attempts_survive_kills_and_stops_and_never_exceed_the_policy(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        rig.worker("timers", app=APP)
        worker = rig.worker("ask", app=APP)
        rig.submit([Ask(n=0, good_at=99, wait_ms=2_500)])
        for attempt in range(1, ATTEMPTS):
            rig.wait(lambda n=attempt: is_waiting(rig, 0, n), f"it waits after attempt {attempt}")
            # In turn a kill and a graceful stop, each in the middle of a wait.
            if attempt % 2:
                worker.kill()
            else:
                assert worker.stop() == 0
            worker = rig.worker("ask", app=APP)
        rig.wait(lambda: rig.dead_letters("ask"), "it is dead-lettered")
        rig.wait_drained()
        assert_each_attempt_once(rig)


def test_a_graceful_stop_in_the_middle_of_a_wait_in_place_forgets_no_attempt(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, held_flow) as rig:
        rig.worker("timers", app=HELD_APP)
        worker = rig.worker("ask", app=HELD_APP)
        rig.submit([Ask(n=0, good_at=99, wait_ms=2_500)])
        for attempt in range(1, ATTEMPTS):
            rig.wait(lambda n=attempt: runs(rig, 0) == n, f"attempt {attempt} has run")
            # What it waits for is in memory alone.
            assert rig.log(settings.names.timers_topic)[attempt - 1 :] == []
            assert worker.stop() == 0
            assert len(rig.log(settings.names.timers_topic)) == attempt
            worker = rig.worker("ask", app=HELD_APP)
        rig.wait(lambda: rig.dead_letters("ask"), "it is dead-lettered")
        rig.wait_drained()
        assert_each_attempt_once(rig)


def assert_each_attempt_once(rig: Rig) -> None:
    """By the target's record: each attempt of job 0 ran, and no more; the dead letter agrees."""
    assert rig.target.calls == [(f"run 0 attempt {n}", 0) for n in range(1, ATTEMPTS + 1)]
    [letter] = rig.dead_letters("ask")
    assert letter.header(h.DLQ_DELIVERY_COUNT) == b"%d" % ATTEMPTS
    steps = steps_by_job(rig.states())[job_id(0)]
    assert [(s.seq, s.attempts) for s in steps] == [(n, n) for n in range(1, ATTEMPTS + 1)]
    assert [s.status for s in steps] == [Status.WAITING] * (ATTEMPTS - 1) + [Status.FAILED]


def test_a_stage_whose_world_is_away_pauses_and_goes_on_without_spending_attempts(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        worker = rig.worker(app=APP)
        rig.submit([Ask(n=0, good_at=2, how="world")])
        rig.wait(lambda: "stage_paused" in worker.log, "the stage pauses")
        rig.submit([Ask(n=n) for n in range(1, 50)])
        rig.wait_results(49)
        assert "stage_resumed" in worker.log
        rig.wait(lambda: runs(rig, 0) >= 3, "the failing one is tried again and again")
        assert {key for key, n in rig.target.calls if n == 0} == {"run 0 attempt 1"}
        assert rig.dead_letters("ask") == []
