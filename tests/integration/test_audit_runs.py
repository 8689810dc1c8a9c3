"""`handoff audit` of runs and waits: what is well raises nothing, each fault has its name.

Faults are forged on the records and tables of real runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas import headers as h
from schemas.state import Status
from streams.audit import audited
from streams.client import Client
from streams.config import Settings
from tests.integration.test_why import QUICK, Why
from tests.support import moody
from tests.support.audits import forge, pairs, project, state_bytes
from tests.support.commands import Command
from tests.support.refunds import Order, flow
from tests.support.rig import Rig

pytestmark = pytest.mark.services

APP = "tests.support.refunds:flow"


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, flow) as made:
        yield made


def submit(rig: Rig, orders: list[tuple[str, Order, str]]) -> list[str]:
    """(id, order, stage) each."""

    async def send() -> None:
        async with Client(rig.settings) as client:
            for job_id, order, stage in orders:
                await client.submit(flow, order, job_id, stage=stage)

    asyncio.run(send())
    return [job_id for job_id, _, _ in orders]


def signal(rig: Rig, ids: list[str], value: Any = True) -> None:
    async def send() -> None:
        async with Client(rig.settings) as client:
            for each in ids:
                await client.signal("refunds", each, "approval", value, by="ann")

    asyncio.run(send())


def findings(rig: Rig) -> list[tuple[str, str, str]]:
    with audited(rig.settings) as verdict:
        assert verdict.clean == (not pairs(verdict))
        return [(f.rule, f.job or "", f.detail) for f in verdict.findings()]


def orders(start: int) -> list[tuple[str, Order, str]]:
    """Every way through the flow."""
    cases = [
        (Order(n=0), "refund"),
        (Order(n=1, nap_s=0.5), "refund"),
        (Order(n=2, amount=90), "refund"),
        (Order(n=3, bad_book=True), "refund"),
        (Order(n=4, amount=90, patience_s=0.5), "refund"),
        (Order(n=5), "ask"),
        (Order(n=6), "ask"),
        (Order(n=7, patience_s=0.5), "ask"),
    ]
    return [
        (f"{start + k:032x}", o.model_copy(update={"n": start + o.n}), stage)
        for k, (o, stage) in enumerate(cases)
    ]


def test_runs_and_waits_raise_nothing_while_they_run_and_when_they_are_over(
    rig: Rig, tmp_path: Path
) -> None:
    worker = rig.worker(app=APP)
    signal(rig, [f"{16 + 6:032x}"], "early")
    ids = submit(rig, orders(16))
    while rig.finished() < 6:
        assert findings(rig) == []
        if rig.finished() >= 2 and len(rig.workers) == 1:
            worker.kill()
            worker = rig.worker(app=APP)
    signal(rig, [ids[2], ids[5]])
    rig.wait_results(8)
    rig.wait_drained()
    project(rig)
    assert findings(rig) == []
    # A called job that had failed is brought back: its run is over, or goes on without it.
    handoff = Command(rig.settings, tmp_path)
    assert handoff("dlq", "redrive", "--filter", "stage=book", "--yes").returncode == 0
    rig.wait(
        lambda: any(r.header(h.REDRIVE) for r in rig.records("book")) and rig.drained(),
        "what was redriven has failed again",
    )
    project(rig)
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert verdict.horizon == {}
        assert verdict.jobs.accepted == len({s.trace_id for s in rig.states()})
        failed = {s.trace_id for s in rig.states() if s.status is Status.FAILED}
        assert verdict.jobs.done == verdict.jobs.accepted - len(failed)
    assert worker.stop() == 0
    _damage(rig, ids)


def _damage(rig: Rig, ids: list[str]) -> None:
    """Goal: each fault has its name. Method: one for each job of a run that is over."""
    plain, slow, risky, undone, late, asked, early, tired = ids
    expected = set()
    rig.sql("DELETE FROM run_events WHERE parent = %s AND kind = 'call' AND ref = '1'", plain)
    rig.sql("DELETE FROM runs WHERE parent = %s", slow)
    rig.sql("UPDATE runs SET status = 'open' WHERE parent = %s", tired)
    rig.sql("UPDATE run_events SET value = 'null' WHERE parent = %s AND ref = '2'", undone)
    rig.sql("UPDATE run_events SET \"offset\" = 0 WHERE parent = %s AND kind = 'timer'", late)
    expected |= {("run_differs", job) for job in (plain, slow, undone, late, tired)}
    # Its run ended once more, by somebody else's hand.
    state = rig.settings.names.job_state_topic
    forge(rig, state, asked, state_bytes(rig, asked, 3))
    expected |= {("run_doubled", asked)}
    # A call that was started twice, and one that nobody called.
    first = next(r for r in rig.records("restock") if r.job == f"{risky}/1")
    forge(rig, rig.topic("restock"), first.job, first.value or b"", first.headers)
    expected |= {("branch_doubled", first.job)}
    forge(rig, rig.topic("restock"), f"{early}/9", first.value or b"", first.headers)
    expected |= {("branch_orphan", f"{early}/9")}
    # A step of a run that names the record of another.
    forged = state_bytes(rig, early, 2, seq=4, to=[])
    forge(rig, state, early, forged)
    expected |= {("state_without_cause", early)}
    found = {(rule, job) for rule, job, _ in findings(rig)}
    # That the projection has not seen what was forged is another matter.
    assert expected <= found
    assert {rule for rule, _ in found - expected} <= {
        "step_after_end",
        "run_without_start",
        "run_doubled",
        "timer_missing",
        "hand_off_lost",
    }


def test_runs_that_failed_or_were_parked_go_on_when_they_are_redriven(
    settings: Settings, tmp_path: Path
) -> None:
    """Goal: no false alarm, and each says what to do. Method: a release that fails or cannot go on,
    then one that is mended; the dead letters are shown, redriven, one is discarded."""
    with Rig(settings, tmp_path, moody.flow, **QUICK) as rig:
        why = Why(rig, tmp_path)
        worker = rig.worker(app="tests.support.moody:flow")
        moods = ("", "fails", "lost", "early", "fails")
        ids = rig.submit([moody.Task(n=n, mood=mood) for n, mood in enumerate(moods)])
        rig.wait(lambda: rig.finished() == 1 and len(rig.dead_letters("join")) == 4, "all rest")
        rig.wait_drained()
        project(rig)
        assert worker.stop() == 0
        assert findings(rig) == []
        for job in ids[1:]:
            found = why(job)
            assert (found["answer"], found["stage"]) == ("dead_letter", "join")
            assert found["do"][0] == f"handoff run {job}"
            assert found["do"][-1] == f"handoff dlq redrive {job}"
        assert "bad_setup" in why(ids[2])["why"]
        assert "parked" in why.handoff("run", ids[2]).stdout
        assert why.handoff("dlq", "show", ids[1]).returncode == 0
        assert why.handoff("dlq", "discard", ids[4], "--reason", "no", "--yes").returncode == 0
        rig.variables[moody.MENDED] = "1"
        rig.worker(app="tests.support.moody:flow")
        for job in ids[1:4]:
            assert why.handoff("dlq", "redrive", job, "--yes").returncode == 0
        rig.wait_results(4)
        rig.wait_drained()
        project(rig)
        assert findings(rig) == []
        told = why.handoff("run", ids[1]).stdout
        assert "redrive of step" in told
        assert why(ids[4])["answer"] == "dead_letter"
