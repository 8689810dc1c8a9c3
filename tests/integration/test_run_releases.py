"""Goal: code that no longer fits a run's journal is found and said, and never harms the run.

Method: a run waits for a signal; a worker with a later release of its flow gets the signal; then
the first release again, and a redrive.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.state import Status
from streams.client import Client
from streams.config import Settings
from tests.support.commands import Command
from tests.support.judge import assert_no_step_twice, doubles
from tests.support.refunds import Order, Refund, flow
from tests.support.rig import Rig

pytestmark = pytest.mark.services

APP, CHANGED = "tests.support.refunds:flow", "tests.support.refunds_changed:flow"


def test_a_run_is_parked_by_code_that_does_not_fit_and_goes_on_with_the_old(
    settings: Settings, tmp_path: Path
) -> None:
    handoff = Command(settings, Path.cwd())
    with Rig(settings, tmp_path, flow) as rig:
        others = tuple(name for name in flow.inputs if name != "join")
        rig.worker(*others, "projector", app=APP, slot=1)
        old = rig.worker("join", app=APP)
        (job,) = rig.submit([Order(n=1, amount=90)])
        rig.wait(lambda: waits(rig) == ["signal approval"], "it waits")
        assert old.stop() == 0

        before = kept(rig)
        changed = rig.worker("join", app=CHANGED)
        approve(rig, job)
        rig.wait(lambda: rig.dead_letters("join"), "it is parked")
        (letter,) = rig.dead_letters("join")
        (state,) = [s for s in rig.states() if s.error is not None]
        assert (letter.job, state.trace_id, state.status) == (job, job, Status.WAITING)
        assert state.error is not None
        assert state.error.kind == "code_changed"
        assert state.error.message.startswith(
            f"The code of orchestration refund does not fit the journal of run {job}: its command "
            "1 was 'signal approval', and this code asks for 'sleep'. Nothing was done."
        )
        assert kept(rig) == before, "nothing was asked for"
        assert changed.stop() == 0

        rig.worker("join", app=APP)
        projected = "SELECT 1 FROM jobs WHERE trace_id = %s AND seq = %s"
        rig.wait(lambda: rig.sql(projected, job, state.seq), "the projection knows it")
        redriven = handoff("dlq", "redrive", job, "--yes")
        assert redriven.returncode == 0, redriven.stdout + redriven.stderr
        rig.wait_results(1)
        (result,) = rig.records("done")
        found = Refund.model_validate_json(result.value or b"")
        assert found == Refund(n=1, path=("risky", "1", "2"), by="ann")
        assert_no_step_twice(rig)
        assert doubles(rig.target.calls) == {}


def waits(rig: Rig) -> list[str]:
    return [
        text.split(" until ")[0]
        for row in rig.sql("SELECT waits FROM runs")
        for text in row["waits"]
    ]


def kept(rig: Rig) -> list[dict[str, object]]:
    """The commands of all runs, and what the topics of their calls hold."""
    records = sum(len(rig.records(stage.name)) for stage in flow.stages)
    return [{"records": records}, *rig.sql("SELECT * FROM run_commands ORDER BY parent, run, n")]


def approve(rig: Rig, job: str) -> None:
    async def send() -> None:
        async with Client(rig.settings) as client:
            await client.signal("refunds", job, "approval", {"ok": True}, by="ann")

    asyncio.run(send())
