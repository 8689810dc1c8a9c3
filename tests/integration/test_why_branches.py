"""`handoff why` of jobs that fork: each answer is brought about, then asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.config import Settings
from tests.integration.test_why import QUICK, Why
from tests.support.forking import MENDED, Whole, flow
from tests.support.rig import Rig

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"


def test_what_a_job_that_forked_waits_for(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow, **QUICK) as rig:
        why = Why(rig, tmp_path)
        worker = rig.worker("split", "part", "regather", "gather", "projector", app=APP)
        (job,) = rig.submit([Whole(n=0, parts=8, bad=(1, 2, 3, 5), lost=(6,))])
        found = why.until(job, "no_worker", lambda x: x["stage"] == "join")
        assert "A record of its join lies before stage join at" in found["why"]
        assert found["do"] == ["handoff worker join --slot 0"]

        agent = rig.worker("join", slot=1, app=APP)
        found = why.until(
            job, "branches", lambda x: (x["facts"]["done"], x["facts"]["failed"]) == (3, 4)
        )
        found = why.until(job, "branches", lambda x: "failed at part" in x["why"])
        assert "which stage split made at 2" in found["why"]
        assert "3 of 8 are done, 4 failed, 1 did not come yet. Stage gather then" in found["why"]
        assert "/1 part · failed: rejected: part 1 is bad; dead letter since" in found["why"]
        assert "and 2 more. 4 of 5 failed at part (rejected). Redrive what failed" in found["why"]
        assert found["do"] == [
            *(f"handoff dlq redrive {job}/{n}" for n in (1, 2, 3)),
            "handoff dlq ls",
            f"handoff join {job}",
        ]
        assert [b["job"] for b in found["facts"]["named"]] == [f"{job}/{n}" for n in (1, 2, 3)]
        assert why(f"{job}/1")["answer"] == "dead_letter"
        found = why(f"{job}/6")
        assert (found["answer"], found["job"]) == ("in_work", f"{job}/6")

        assert agent.stop() == 0
        found = why.until(job, "branches", lambda x: "No worker runs the join agent" in x["why"])
        assert found["do"][0] == "handoff worker join --slot 1"
        assert worker.stop() == 0
        found = why.until(f"{job}/6", "no_worker")
        assert "Its first record lies before stage part" in found["why"]

        rig.variables[MENDED] = "1"
        rig.worker(app=APP)
        redrive = [f"{job}/{n}" for n in (1, 2, 3, 5)]
        assert why.handoff("dlq", "redrive", *redrive, "--yes").returncode == 0
        found = why.until(job, "branches", lambda x: x["facts"]["done"] == 7)
        assert found["do"] == [f"handoff why {job}/6", f"handoff join {job}"]
        assert "See why one of them has not." in found["why"]
        rig.target.open("lost")
        why.until(job, "done")


def test_a_fork_within_a_fork_and_a_join_that_failed(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow, **QUICK) as rig:
        why = Why(rig, tmp_path)
        worker = rig.worker(app=APP)
        outer, hasty = rig.submit(
            [
                Whole(n=0, parts=2, depth=1, lost=(1,)),
                Whole(n=1, parts=3, bad=(1,), lost=(2,), on_missing="fail", timeout_s=600),
            ]
        )
        found = why.until(hasty, "dead_letter", lambda x: not x["projection_behind"])
        assert found["stage"] == "join"
        assert "branches_missing: Join" in found["why"]
        assert found["do"][0] == f"handoff join {hasty}"
        assert found["do"][-1] == f"handoff dlq redrive {hasty}"
        text = why.handoff("join", hasty).stdout
        assert "fail: the first branch that fails fails the job; until 2" in text
        assert f"next: handoff dlq redrive {hasty}/1" in text
        assert f"      handoff dlq redrive {hasty}\n" in text
        assert "Redrive the dead letters of its branches, then its own" in text

        shown = why.handoff("dlq", "show", hasty)
        assert (shown.returncode, "branches_missing" in shown.stdout) == (0, True), shown
        edited = why.handoff("dlq", "edit", hasty, "--app", APP, "--set", "x=1", "--yes")
        assert edited.returncode == 1
        assert "takes no other payload" in edited.stderr

        found = why.until(outer, "branches", lambda x: x["facts"]["done"] == 1)
        assert found["do"][0].startswith(f"handoff why {outer}/1")

        assert worker.stop() == 0
        rig.variables[MENDED] = "1"
        rig.worker(app=APP)
        for each in (f"{hasty}/1", hasty):
            assert why.handoff("dlq", "redrive", each, "--yes").returncode == 0
        found = why.until(hasty, "branches", lambda x: x["facts"]["done"] == 2)
        assert found["do"] == [f"handoff why {hasty}/2", f"handoff join {hasty}"]
        rig.target.open("lost")
        for each in (hasty, outer):
            why.until(each, "done")
