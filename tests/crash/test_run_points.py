"""Killed at each step of a run's journal, in turn: the same end, and each effect once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.state import Status
from streams.client import Client
from streams.config import Settings
from tests.support.judge import assert_no_step_twice, doubles
from tests.support.refunds import Order, Refund, flow
from tests.support.rig import Rig
from tests.support.worker import killed

pytestmark = pytest.mark.services

APP = "tests.support.refunds:flow"


def approve(rig: Rig, job: str) -> None:
    async def send() -> None:
        async with Client(rig.settings) as client:
            await client.signal("refunds", job, "approval", {"ok": True}, by="ann")

    asyncio.run(send())


def steps(rig: Rig) -> int:
    """Of runs."""
    return sum(s.stage == "join" for s in rig.states())


def test_a_run_killed_at_each_step_of_its_journal_ends_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    """One worker does all but the runs. The agent that plays them dies at one event after the
    other: each life brings the one that its predecessor died at to its end, and dies at the next.
    """
    lives = (
        "runs.happened:1",  # the beginning
        "runs.asked:2",  # the score
        "join.applied:2",  # the signal
        "join.decided:2",  # the timer
        "commit.produced:2",  # the first of the pair
        "commit.offsets_sent:2",  # the second, or what they led to if they were one batch
        "commit.committed:1",
    )
    with Rig(settings, tmp_path, flow) as rig:
        others = tuple(name for name in flow.inputs if name != "join")
        rig.worker(*others, "timers", app=APP)
        (job,) = rig.submit([Order(n=1, amount=90, nap_s=0.2, bad_book=True)])
        for n, point in enumerate(lives):
            worker = rig.worker("join", app=APP, slot=1, crash_point=point)
            worker.expected_to_run = False
            if n == 2:
                rig.wait(lambda: steps(rig) == 2, "it waits for the signal")
                approve(rig, job)
            killed(worker)
            assert steps(rig) == n or n > 4, f"steps that were committed before {point}"
        rig.worker("join", app=APP, slot=1)
        rig.wait_results(1)
        rig.wait_drained(*flow.inputs)
        (result,) = rig.records("done")
        found = Refund.model_validate_json(result.value or b"")
        assert found == Refund(n=1, path=("risky", "slept", "undone"), by="ann")
        told = [(s.seq, s.stage, s.status) for s in rig.states() if s.trace_id == job]
        assert told == [
            (1, "refund", Status.WAITING),
            *[(seq, "join", Status.WAITING) for seq in range(2, 7)],
            (7, "join", Status.DONE),
        ]
        children = {s.trace_id: s.status for s in rig.states() if s.parent == job}
        assert [children[f"{job}/{n}"] for n in range(4)] == [
            Status.DONE,
            Status.DONE,
            Status.FAILED,
            Status.DONE,
        ]
        assert_no_step_twice(rig)
        assert doubles(rig.target.calls) == {}
        names = sorted(key.rpartition(":")[2] for key in rig.target.effects)
        assert names == ["restock", "score", "undo"]
