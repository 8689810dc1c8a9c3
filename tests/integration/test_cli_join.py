"""What operators see of forks: `join`, `jobs`, `trace`, `lag` and `flow` on real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streams.cli.prepare import environment
from streams.config import Settings
from tests.support.audits import project
from tests.support.commands import Command
from tests.support.forking import MENDED, Whole, flow
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"


class Desk:
    """The commands on one rig, and their answers as data."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.handoff = Command(rig.settings, folder)

    def json(self, *args: str) -> Any:
        done = self.handoff(*args, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def join(self, job: str) -> dict[str, Any]:
        """The only join of a job."""
        (found,) = self.json("join", job)
        return dict(found)

    def until(self, job: str, fact: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The join of `job`, once `fact` holds for it."""
        seen: dict[str, Any] = {}

        def is_so() -> object:
            done = self.handoff("join", job, "-o", "json")
            if done.returncode:
                return False
            seen.update(json.loads(done.stdout)[0])
            return fact(seen)

        try:
            self.rig.wait(is_so, f"the join of {job} is so")
        except AssertionError as e:
            raise AssertionError(f"{e}\nlast answer: {seen}") from None
        return seen


def test_a_join_that_waits_names_what_it_waits_for(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        desk = Desk(rig, tmp_path)
        worker = rig.worker(app=APP)
        (job,) = rig.submit([Whole(n=0, parts=30, lost=(3,), bad=(4, 20))])
        found = desk.until(job, lambda x: (x["done"], x["failed"]) == (27, 2))
        rig.wait(lambda: len(rig.dead_letters("part")) == 2, "both bad ones are dead letters")
        project(rig)

        found = desk.join(job)
        assert (found["id"], found["status"], found["rule"]) == (f"{job}:1", "open", "wait")
        assert (found["expected"], found["missing"], found["late"]) == (30, 1, 0)
        stands = {b["number"]: b["stands"] for b in found["branches"]}
        assert stands.keys() == {3, 4, 20}
        assert stands[3] == "no step yet"
        assert stands[4].startswith("part · failed: rejected: part 4 is bad; dead letter since 2")
        assert found["do"] == [f"handoff dlq redrive {job}/4", f"handoff dlq redrive {job}/20"]
        assert desk.json("join", f"{job}:1") == [found]

        text = desk.handoff("join", job).stdout
        assert "split → gather" in text
        assert "27/30 branches, 2 failed, 1 missing" in text
        assert "Redrive what failed: the join goes on by itself once the last branch" in text
        assert f"next: handoff dlq redrive {job}/4" in text

        shown = desk.handoff("jobs", "show", job).stdout
        assert f"27/30 branches, 2 failed → gather, open (handoff join {job}:1)" in shown
        assert "waiting for branches at split" in shown
        assert desk.json("jobs", "show", job)["joins"][0]["done"] == 27
        assert "waiting for branches" in desk.handoff("jobs", "ls", "--status", "waiting").stdout
        assert [j["trace_id"] for j in desk.json("jobs", "ls", "--roots")] == [job]
        child = desk.handoff("jobs", "show", f"{job}/4").stdout
        assert f"branch of  {job} (handoff join {job})" in child

        for wrong, why in (
            (f"{job}:7", "has no join of its step 7"),
            (f"{job}/4", f"has no fork. It is a branch of {job}: handoff join {job}."),
            ("f" * 32, "No job has an id that begins with"),
        ):
            done = desk.handoff("join", wrong)
            assert (done.returncode, why in done.stderr) == (1, True), done

        assert worker.stop() == 0
        rig.variables[MENDED] = "1"
        rig.worker(app=APP)
        assert desk.handoff("dlq", "redrive", f"{job}/4", f"{job}/20", "--yes").returncode == 0
        desk.until(job, lambda x: x["done"] == 29)
        rig.target.open("lost")
        found = desk.until(job, lambda x: x["status"] == "joined")
        assert (found["done"], found["branches"], found["do"]) == (30, [], [])
        rig.wait_results(1)


def test_a_branch_that_comes_when_its_join_is_over_is_shown_as_late(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        desk = Desk(rig, tmp_path)
        rig.worker(app=APP)
        (job,) = rig.submit(
            [Whole(n=0, parts=4, bad=(1,), lost=(2,), on_missing="errors", timeout_s=4)]
        )
        found = desk.until(job, lambda x: (x["done"], x["failed"], x["missing"]) == (2, 1, 1))
        assert found["deadline_at"] is not None
        rig.wait_results(1)
        found = desk.join(job)
        assert (found["status"], found["done"], found["missing"]) == ("joined", 2, 1)
        assert found["do"] == []

        rig.target.open("lost")
        found = desk.until(job, lambda x: x["late"])
        assert (found["done"], found["failed"], found["missing"], found["late"]) == (2, 1, 1, 1)
        project(rig)
        text = desk.handoff("join", job).stdout
        assert "2/4 branches, 1 failed, 1 missing, 1 came late" in text
        assert "part · done; it came at 2" in text
        assert "when the join was over" in text
        assert "Nothing is to be done: stage gather was handed the results." in text


def test_a_prefix_of_a_parent_means_the_parent(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        desk = Desk(rig, tmp_path)
        rig.worker(app=APP)
        ids = [f"{n:x}" + job_id(n)[1:] for n in (10, 11)]
        rig.submit([Whole(n=n, parts=12) for n in range(2)], ids)
        rig.wait_results(2)
        project(rig)
        assert desk.json("jobs", "show", "a")["trace_id"] == ids[0]
        assert desk.json("jobs", "show", f"{ids[0]}/3")["parent"] == ids[0]
        assert desk.json("trace", "b")["trace_id"] == ids[1]
        assert desk.json("why", "b")["answer"] == "done"
        several = desk.handoff("jobs", "show", f"{ids[0]}/")
        assert (several.returncode, "Several jobs begin with" in several.stderr) == (1, True)
        assert desk.json("jobs", "show", f"{ids[0]}/11")["trace_id"] == f"{ids[0]}/11"
        assert desk.json("jobs", "show", f"{ids[0]}/1")["trace_id"] == f"{ids[0]}/1"


def test_a_trace_tells_a_fork_in_a_line(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        desk = Desk(rig, tmp_path)
        rig.worker(app=APP)
        job, waiting = rig.submit(
            [Whole(n=0, parts=40, bad=(7,), on_missing="errors"), Whole(n=1, parts=2, lost=(1,))]
        )
        rig.wait_results(1)
        desk.until(waiting, lambda x: x["done"] == 1)
        project(rig)

        found = desk.json("trace", job)
        assert [hop["hop"]["stage"] for hop in found["hops"]] == ["split", "join", "gather"]
        fork = found["hops"][0]["fork"]
        assert (fork["id"], fork["expected"]) == (f"{job}:1", 40)
        assert (fork["done"], fork["failed"], fork["missing"]) == (39, 1, 0)
        assert fork["last_branch"].startswith(f"{job}/")
        assert 0 < fork["took_us"] < 60e6
        assert found["hops"][1]["fork"] is None
        text = desk.handoff("trace", job).stdout
        assert "⋔ 40 branches to gather: 39 done, 1 failed, 0 missing; joined after" in text
        assert text.count(f"{job}/") == 1
        assert "until the record that ended its wait for branches" in text

        assert "branches" not in found
        few = desk.json("trace", job, "--children", "8")["branches"]
        assert [b["number"] for b in few] == list(range(8))
        assert few[0]["stands"] == "part · done"
        assert few[7]["stands"].startswith("part · failed: rejected: part 7 is bad; dead letter")
        listed = desk.handoff("trace", job, "--children", "5").stdout
        assert f"{job}/4   part · done" in listed
        assert f"{job}/5" not in listed.partition("stands at")[2]

        text = desk.handoff("trace", waiting).stdout
        assert "⋔ 2 branches to gather: 1 done, 0 failed, 1 missing; the last to end" in text
        assert "waits for a person" not in text
        child = desk.json("trace", f"{job}/7")
        assert (child["parent"], child["status"]) == (job, "failed")
        assert f"branch of {job}" in desk.handoff("trace", f"{job}/7").stdout
        link = desk.handoff("trace", f"{job}/7", "--open", HANDOFF_TRACE_URL="http://x/{trace_id}")
        assert link.stdout == f"http://x/{job}\n"
        rig.target.open("lost")
        rig.wait_results(2)


def test_the_flow_shows_forks_and_joins_and_nothing_that_is_not_declared(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        desk = Desk(rig, tmp_path)
        rig.worker(app=APP)
        jobs = [Whole(n=n, parts=3, depth=n % 2) for n in range(20)]
        rig.submit([*jobs, Whole(n=20, parts=0), Whole(n=21, parts=1, bad=(0,))])
        rig.wait_results(21)
        rig.wait(lambda: rig.dead_letters("part"), "the bad one is a dead letter")
        project(rig)

        found = desk.json("flow", "--app", APP)
        seen = {(e["source"], e["target"]): e for e in found["edges"]}
        assert {edge: e["jobs"] for edge, e in seen.items()} == {
            ("(submit)", "split"): 22,
            ("split", "part"): 61,
            ("split", "join"): 22,
            ("part", "part"): 90,
            ("part", "join"): 150,
            ("regather", "join"): 30,
            ("join", "regather"): 30,
            ("join", "gather"): 21,
            ("gather", "done"): 21,
            ("part", "(dead letters)"): 1,
        }
        assert found["differences"] == []
        assert [edge for edge, e in seen.items() if e["fork"]] == [
            ("split", "part"),
            ("part", "part"),
        ]
        # A part that forks is done with only as its children are: what waits has not ended.
        assert seen["split", "part"]["ended"] == 31
        assert seen["split", "part"]["failed"] == 1
        assert seen["part", "part"]["ended"] == 90
        assert (seen["split", "join"]["ended"], seen["part", "join"]["ended"]) == (21, 30)
        assert (seen["split", "part"]["share"], seen["split", "join"]["share"]) == (None, 1.0)
        assert seen["split", "join"]["behind"]["pace"] == "idle"
        assert "part (fork)" in desk.handoff("flow", "--app", APP).stdout

        lag = desk.json("lag", "--stage", "join")
        assert {(x["group"], x["state"]) for x in lag} == {(rig.group("join"), "idle")}
        horizon = desk.json("topics", "horizon", "--app", APP)
        assert rig.topic("join") in json.dumps(horizon)


def test_up_runs_the_join_agent_too(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow) as rig, (tmp_path / "up.log").open("wb") as log:
        argv = [sys.executable, "-m", "streams.cli", "up", "--app", APP]
        env = {**os.environ, **environment(rig.settings)}
        up = subprocess.Popen(argv, env=env, stderr=log, start_new_session=True)
        try:
            (job,) = rig.submit([Whole(n=0, parts=5)])
            rig.wait_results(1)
            project(rig)
            desk = Desk(rig, tmp_path)
            assert desk.json("jobs", "show", job)["joins"][0]["done"] == 5
            doctor = desk.json("doctor", "--app", APP)
            assert {c["name"]: c["detail"] for c in doctor}["group offsets"] == "seeded"
            assert desk.handoff("worker", "joins", "--app", APP).returncode == 2
        finally:
            up.send_signal(signal.SIGINT)
            assert up.wait(60) == 0
    told = (tmp_path / "up.log").read_text()
    assert "1 worker with split, part, regather, gather, join, the projector" in told
