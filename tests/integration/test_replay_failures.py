"""Replay of what went wrong: retries, timers, dead letters, redrives; and that its session cannot
write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streams.config import Settings
from streams.errors import BadWorld
from streams.replay.lookup import lookup
from tests.support import flows, patient
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.letters import MENDED, ran
from tests.support.rig import Rig, job_id
from tests.support.target import SOCKET_VARIABLE

pytestmark = pytest.mark.services

WAITS_MS = int(patient.IN_PLACE.total_seconds() * 1000) + 200
DEADLY = ("raise", "reject", "unprintable", "speechless", "stubborn")
FLOWS = "tests.support.flows:flow"


def replayed(handoff: Command, *args: str, **env: str) -> dict[str, Any]:
    done = handoff("replay", *args, "-o", "json", **env)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["all_same"] else 1)
    return found


def over(rig: Rig, **wanted: int) -> bool:
    rows = rig.sql("SELECT status, count(*) AS n FROM jobs GROUP BY status")
    return {row["status"]: row["n"] for row in rows} == wanted


def test_failures_are_the_same_and_a_mended_stage_is_seen_to_mend_them(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        handoff = Command(settings, tmp_path)
        faults = [*DEADLY, "", "retry"]
        jobs = [Job(n=n, fault=faults[n % 7], effect=("", "once")[n % 2]) for n in range(70)]
        worker = rig.worker()
        rig.submit(jobs)
        rig.wait(lambda: over(rig, failed=50, done=20), "all are over")
        assert worker.stop() == 0
        calls = len(rig.target.calls)

        work = ("--topic", "run.work")
        found = replayed(handoff, *work, "--app", FLOWS)
        assert found["all_same"], found["groups"]
        assert found["counts"]["same"] == 70

        dead = {job_id(job.n) for job in jobs if job.fault in DEADLY}
        mended = replayed(handoff, "--dlq", "stage=work", "--app", MENDED)
        assert {each["job"] for each in mended["differing"]} == dead
        assert mended["counts"]["changed"] == len(dead)
        assert replayed(handoff, "--dlq", "all", "--app", FLOWS)["all_same"]

        ran(handoff("dlq", "redrive", "--filter", "stage=work", "--yes"))
        worker = rig.worker(app=MENDED)
        rig.wait(lambda: over(rig, done=70), "all are mended")
        assert worker.stop() == 0
        # Each step is compared with itself: those that failed, and those of the redriven records.
        found = replayed(handoff, *work, "--app", MENDED)
        assert (found["counts"]["same"], found["counts"]["changed"]) == (70, 50)
        found = replayed(handoff, *work, "--app", FLOWS)
        assert (found["counts"]["same"], found["counts"]["failed"]) == (70, 50)
        assert len(rig.target.calls) == calls

        with (
            pytest.raises(BadWorld, match="read-only"),
            lookup(settings, flows.flow) as asking,
        ):
            asking.conn.execute("DELETE FROM effects")


def test_steps_that_waited_for_a_timer_have_the_attempts_that_they_had(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, patient.flow) as rig:
        handoff = Command(settings, tmp_path)
        asks: list[Any] = [
            patient.Ask(n=n, good_at=1 + n % 6, wait_ms=WAITS_MS if n % 2 else 0) for n in range(12)
        ]
        worker = rig.worker(app=patient.APP)
        rig.submit(asks, [job_id(a.n) for a in asks])
        # Six attempts are more than there are.
        rig.wait(lambda: over(rig, failed=4, done=8), "all are over")
        assert worker.stop() == 0
        steps = rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"]
        waited = rig.sql("SELECT count(*) AS n FROM job_history WHERE status = 'waiting'")[0]["n"]
        assert waited > 5
        target = {SOCKET_VARIABLE: str(rig.target.socket)}
        found = replayed(handoff, "--topic", "patient.ask", "--app", patient.APP, **target)
        assert found["all_same"], found["groups"]
        assert found["counts"]["same"] == steps
