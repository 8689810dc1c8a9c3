"""`handoff flow` on real services: traffic of a run, and code that declares something else."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streams.config import Settings
from streams.postgres import connect
from streams.state.graph import Edge
from streams.state.traffic import traffic
from tests.support.audits import project
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.rig import Rig

pytestmark = pytest.mark.services

APP = "tests.support.flows:flow"
#: Another wiring of the same stages than the one that ran.
REWIRED = """
from streams import Flow, stage
from tests.support.flows import Job, flow as ran, finish
from streams import Context, Emit

@stage("take", emits=("work", "finish"))
def take(job: Job, _: Context) -> Emit:
    return Emit("work", job)

@stage("work", emits="done")
def work(job: Job, _: Context) -> Job:
    return job

flow = Flow("run", (take, work, finish), sinks=("done",))
"""
JOBS, BAD = 60, 6


def edges(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(e["source"], e["target"]): e for e in found["edges"]}


def test_the_traffic_of_a_run_against_its_code_and_other_code(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "rewired.py").write_text(REWIRED)
    with Rig(settings, tmp_path) as rig:
        handoff = Command(rig.settings, tmp_path)
        nothing = handoff("flow", "--app", APP)
        assert nothing.returncode == 0
        assert "Nothing of flow run was projected since" in nothing.stderr

        worker = rig.worker()
        jobs = [Job(n=n, wait_ms=20) for n in range(JOBS - BAD - 1)]
        jobs += [Job(n=n, fault="reject") for n in range(JOBS - BAD - 1, JOBS - 1)]
        rig.submit([*jobs, Job(n=JOBS - 1, gate="a")])
        rig.wait_results(JOBS - BAD - 1)
        rig.wait(lambda: len(rig.dead_letters("work")) == BAD, "the bad ones are dead letters")
        project(rig)

        done = handoff("flow", "--app", APP, "-o", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        good = JOBS - BAD - 1
        seen = edges(found)
        assert {edge: (e["jobs"], e["failed"]) for edge, e in seen.items()} == {
            ("(submit)", "take"): (JOBS, 0),
            ("take", "work"): (JOBS, BAD),
            ("work", "finish"): (good, 0),
            ("finish", "done"): (good, 0),
            ("work", "(dead letters)"): (BAD, 0),
        }
        into_work = seen["take", "work"]
        assert into_work["error_share"] == BAD / (JOBS - 1)
        assert 0.02 < into_work["p50_s"] <= into_work["p95_s"] < 60
        assert into_work["per_s"] == pytest.approx(JOBS / 900)
        assert (into_work["behind"]["records"], into_work["behind"]["pace"]) == (1, "moving")
        assert seen["work", "finish"]["behind"]["pace"] == "idle"
        assert seen["finish", "done"]["behind"] is None, "a sink has no group of ours"
        assert seen["work", "finish"]["share"] == good / (good + BAD)
        assert found["differences"] == []
        rig.target.open("a")
        rig.wait_results(good + 1)
        project(rig)
        assert worker.stop() == 0

        other = handoff("flow", "--app", "rewired:flow")
        assert other.returncode == 1
        assert "undeclared: work → finish is not declared, and 54 jobs went" in other.stdout
        assert "dead: take → finish is declared and was not used, while take" in other.stdout
        assert "dead: work → done is declared and was not used" in other.stdout
        chart = handoff("flow", "--app", "rewired:flow", "-o", "mermaid").stdout
        assert 'stage_work -.->|"run.finish<br/>' in chart
        assert "10.0% failed" in chart

        # A window earlier nothing failed, and more was done: failing is a branch that has changed.
        rig.sql(
            "INSERT INTO job_history SELECT (jsonb_populate_record(h, jsonb_build_object("
            " 'offset', h.\"offset\" + 1000000 + n, 'status', 'running',"
            " 'committed_us', h.committed_us - 1200000000, 'handed_to', '{finish}'::text[]))).*"
            " FROM job_history AS h, generate_series(1, 1000, 200) AS n"
            " WHERE stage = 'work'"
        )
        changed = handoff("flow", "--app", APP, "-o", "json", "--since", "15m")
        assert changed.returncode == 1
        what = {(d["kind"], d["target"]) for d in json.loads(changed.stdout)["differences"]}
        assert what == {("ratio", "finish"), ("ratio", "(dead letters)")}
        assert edges(json.loads(changed.stdout))["work", "finish"]["jobs_before"] == JOBS * 5

        with connect(rig.settings) as conn:
            until = datetime.now(UTC)
            some = traffic(conn, "run", until - timedelta(minutes=15), until, sample_steps=100)
        assert some.sample == 1 + (3 * JOBS - BAD) // 100 == 2
        assert some.edges[Edge("(submit)", "take")].jobs == JOBS
        assert 0 < some.edges[Edge("take", "work")].ended < JOBS

        future = handoff("flow", "--app", APP, "--since", "2999-01-01")
        assert future.returncode == 2
        declared = handoff("flow", "--app", APP, "--declared", KAFKA_BOOTSTRAP_SERVERS="nowhere:1")
        assert (declared.returncode, "take" in declared.stdout) == (0, True)
