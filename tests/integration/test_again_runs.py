"""Goal: jobs that went through runs and waits are replayed, exported and rerun: with the same
effects no target is called again, whichever call would.

Method: one run of real workers on `tests.support.refunds`, then the commands.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.audit import audited
from streams.config import Settings
from tests.integration.test_audit_runs import APP, orders, signal, submit
from tests.support.audits import pairs, project
from tests.support.commands import Command
from tests.support.judge import doubles
from tests.support.letters import ran
from tests.support.refunds import Refund, flow
from tests.support.rig import Rig

pytestmark = pytest.mark.services


def test_what_went_through_runs_is_replayed_exported_and_rerun(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        handoff = Command(rig.settings, tmp_path)
        worker = rig.worker(app=APP)
        wanted = [orders(16)[n] for n in (0, 2, 3, 5)]
        plain, risky, undone, asked = submit(rig, wanted)
        rig.wait(lambda: rig.finished() == 2, "two need no approval")
        signal(rig, [risky, asked])
        rig.wait_results(4)
        rig.wait_drained()
        project(rig)
        calls = len(rig.target.calls)

        for chosen in (("--trace", risky, "--children"), ("--trace", asked)):
            replayed = ran(handoff("replay", *chosen, "--app", APP, "-o", "json"))
            assert json.loads(replayed.stdout)["all_same"]
        topic = ran(handoff("replay", "--topic", "refunds.ask", "--app", APP, "-o", "json"))
        assert json.loads(topic.stdout)["counts"]["same"] == 2
        file = tmp_path / "asked.json"
        ran(handoff("export", asked, "--to", str(file), "--app", APP))
        steps = json.loads(file.read_text())["steps"]
        assert [s.get("begun") for s in steps if s["stage"] == "ask"] == [["signal approval"], None]
        ran(handoff("replay", "--from-file", str(file), "--app", APP))

        def rerun(job: str, stage: str) -> str:
            found: str = json.loads(ran(handoff(*_rerun(job, stage), "-o", "json")).stdout)["job"]
            return found

        again = [rerun(job, "refund") for job in (plain, risky, undone)]
        waits = rerun(asked, "ask")
        rig.wait(lambda: rig.finished() == 6, "the runs begin anew, one waits for its approval")
        signal(rig, [again[1], waits], "again")
        rig.wait_results(8)
        rig.wait_drained()
        project(rig)
        assert len(rig.target.calls) == calls, "the ledger has answered"
        ended = {r.job: Refund.model_validate_json(r.value or b"") for r in rig.records("done")}
        assert ended[again[0]].path == ("1", "2")
        assert ended[again[1]].path == ("risky", "1", "2")
        assert ended[again[2]].path == ("undone",)
        assert ended[waits].path == ("asked", "again")
        refused = ran(handoff(*_rerun(plain, "join")), 2)
        assert "rerun from the orchestration" in refused.stderr
        # `diff` compares what two jobs' stages did.
        ran(handoff("diff", plain, again[0]))
        assert doubles(rig.target.calls) == {}
        with audited(rig.settings) as verdict:
            assert pairs(verdict) == set()
        assert worker.stop() == 0


def _rerun(job: str, stage: str) -> tuple[str, ...]:
    return "jobs", "rerun", job, "--from", stage, "--effects", "same", "--app", APP
