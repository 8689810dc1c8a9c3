"""`why`, `run`, `trace`, `jobs` of jobs in runs and waits: brought about, then asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.config import Settings
from tests.integration.test_audit_runs import signal, submit
from tests.integration.test_why import QUICK, Why
from tests.support.refunds import Order, flow
from tests.support.rig import Rig

pytestmark = pytest.mark.services

APP = "tests.support.refunds:flow"


def test_what_jobs_in_runs_wait_for_and_how_they_went(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow, **QUICK) as rig:
        why = Why(rig, tmp_path)
        stages = ("refund", "score", "restock", "ask", "join", "projector", "timers")
        rig.worker(*stages, app=APP)
        plain, risky, asked, napping = (f"{n:032x}" for n in range(16, 20))
        submit(
            rig,
            [
                (plain, Order(n=16), "refund"),
                (risky, Order(n=17, amount=90), "refund"),
                (asked, Order(n=18), "ask"),
                (napping, Order(n=19, nap_s=900), "refund"),
            ],
        )
        # Nobody runs `book`.
        found = why.until(plain, "run", lambda x: x["facts"]["waits"] == ["call book (/2)"])
        assert "For its calls: /2 at book, no step yet." in found["why"]
        assert found["do"] == [f"handoff why {plain}/2", f"handoff run {plain}"]
        assert why(f"{plain}/2")["answer"] == "no_worker"
        found = why.until(risky, "run", lambda x: "For: signal approval until 2" in x["why"])
        assert found["do"] == [f"handoff signal {risky} approval JSON", f"handoff run {risky}"]
        found = why.until(asked, "run", lambda x: "It waits at stage ask, since" in x["why"])
        assert found["do"] == [f"handoff signal {asked} approval JSON", f"handoff run {asked}"]
        found = why.until(napping, "run", lambda x: "For: sleep until 2" in x["why"])
        assert found["do"] == [f"handoff run {napping}"]

        listed = why.handoff("jobs", "ls").stdout
        assert listed.count("waiting in a run") == 4
        assert (
            "wait     ask: open, waits for signal appr" in why.handoff("jobs", "show", asked).stdout
        )
        assert why.handoff("run", f"{plain}/1").returncode == 1
        refused = why.handoff("join", plain)
        assert (refused.returncode, f"handoff run {plain}" in refused.stderr) == (1, True)
        assert f"(handoff run {plain})" in why.handoff("jobs", "show", f"{plain}/1").stdout

        signal(rig, [risky, asked], {"limit": 5})
        rig.worker("book", slot=1, app=APP)
        for each in (risky, asked, plain):
            why.until(each, "done")
        (journal,) = json.loads(why.handoff("run", risky, "-o", "json").stdout)
        assert [e["text"] for e in journal["events"]][:3] == [
            "start",
            "call /0 done",
            'signal approval by ann: {"limit":5}',
        ]
        assert (journal["events"][2]["by"], journal["status"]) == ("ann", "ended")
        assert [c["name"] for c in journal["asked"]] == ["score", "approval", "restock", "book"]
        told = why.handoff("run", asked).stdout
        assert 'signal approval by ann: {"limit":5}' in told
        assert "over: handed to ask" in told
        drawn = why.handoff("trace", risky).stdout
        assert "⇢ begins a run of refund" in drawn
        assert "⇢ run of refund: call score (/0)" in drawn
        assert "⇢ waits for signal approval" in why.handoff("trace", asked).stdout
        assert 'until: signal approval by ann: {"limit":5}' in drawn
        assert "⇢ run of refund: call restock (/1); call book (/2)" in drawn
        assert "run of refund over: handed to done" in drawn
