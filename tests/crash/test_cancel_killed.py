"""Goal: whoever is killed around a cancel, each job ends once, and nothing is half done.

Method: jobs in every kind of state under a worker that is killed; the command killed between its
order and its wakes, and after them; workers killed at the points of the way on which a cancel
becomes a step. Judged by job-state, the target's record and the audit.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from streams.audit import Options, audited
from streams.config import Settings
from streams.control import look
from streams.control.keeper import ControlKeeper
from streams.postgres import open_pool
from tests.support.audits import project
from tests.support.cancelling import APP, Errand, flow
from tests.support.judge import assert_no_step_twice, steps_by_job
from tests.support.rig import Rig
from tests.support.worker import environment, killed

pytestmark = pytest.mark.services

#: The first jobs rest in their handlers, in place, for timers, beyond `work`, and at joins.
RESTS = ("gate", "place", "timer", "timer", "pass", "done")
PARTS = (("timer", "gate"), ("timer", "done"), ("place",))


def errands(rounds: int) -> list[Errand]:
    found = []
    for _ in range(rounds):
        found += [{"rest": rest} for rest in RESTS] + [{"parts": parts} for parts in PARTS]
    return [Errand.model_validate({"n": n, "effect": True, **e}) for n, e in enumerate(found)]


def command_killed(rig: Rig, ids: Sequence[str], point: str) -> None:
    settings = rig.settings.model_copy(update={"crash_point": point})
    arguments = ["jobs", "cancel", *ids, "--by", "eve"]
    ended = subprocess.run(
        [sys.executable, "-m", "streams.cli", *arguments],
        env=environment(settings),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


def tended(rig: Rig) -> None:
    """As the projector's worker does once a minute; nothing is too fresh for it."""

    async def tend() -> None:
        async with open_pool(rig.settings) as pool:
            await ControlKeeper(pool, rig.settings, look(rig.settings)).tend(timedelta(0))

    asyncio.run(tend())


def test_commands_and_workers_killed_around_a_cancel(settings: Settings, tmp_path: Path) -> None:
    rounds = 4
    with Rig(settings, tmp_path, flow, cancel_grace_s=0.3, max_commit_records=10) as rig:
        jobs = errands(rounds)
        worker = rig.worker(app=APP)
        ids = rig.submit(jobs)
        rig.wait(lambda: rig.target.waiting("work") == 2 * rounds, "handlers run")
        rig.wait(lambda: len(rig.records("done")) >= rounds, "some are done")
        waiting = "SELECT count(*) AS n FROM jobs WHERE status = 'waiting'"
        rig.wait(lambda: rig.sql(waiting)[0]["n"] == 7 * rounds, "others wait")
        worker.kill()

        command_killed(rig, ids, "cancel.ordered")
        assert len(look(rig.settings).cancelled) == 7 * rounds, "all that were not over"
        assert [r for r in rig.records("work") if r.header("handoff_cancel")] == []
        tended(rig)
        command_killed(rig, ids, "cancel.woken")
        woken = [r.job for r in rig.records("work") if r.header("handoff_cancel")]
        assert len(woken) == 2 * len(set(woken)) == 2 * 4 * rounds, "twice, by two"

        for point in ("suspect.claimed", "commit.produced", "join.applied", "commit.committed"):
            killed(rig.worker(app=APP, crash_point=point))
        survivor = rig.worker(app=APP)
        rig.wait(lambda: all_over(rig, ids), "all are over")
        rig.wait_drained()
        project(rig)
        tended(rig)
        assert look(rig.settings).cancelled == {}, "what is over is forgotten"
        assert survivor.stop() == 0
        judge(rig, ids, jobs)


def all_over(rig: Rig, ids: Sequence[str]) -> bool:
    steps = steps_by_job(rig.states())
    return all(job in steps and steps[job][-1].status.terminal for job in ids)


def judge(rig: Rig, ids: Sequence[str], jobs: Sequence[Errand]) -> None:
    assert_no_step_twice(rig)
    for job, states in steps_by_job(rig.states()).items():
        assert [s.seq for s in states] == list(range(1, len(states) + 1)), job
        assert [s.status.terminal for s in states] == [False] * (len(states) - 1) + [True], job
    ends = {job: states[-1].status.value for job, states in steps_by_job(rig.states()).items()}
    for job, errand in zip(ids, jobs, strict=True):
        over = not errand.parts and errand.rest in ("pass", "done")
        assert ends[job] == ("done" if over else "cancelled"), job
    assert len(rig.target.effects) == len({key for key, _ in rig.target.calls})
    with audited(rig.settings, Options()) as verdict:
        assert verdict.clean, list(verdict.findings(limit=10))
