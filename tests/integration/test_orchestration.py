"""Goal: orchestrations and waits go on where they stood, with each effect once.

Method: real workers on `tests.support.refunds`; judged by the sink, the states, the target's own
record, and Postgres.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.state import Status
from streams.client import Client
from streams.config import Settings
from tests.support.judge import assert_no_step_twice, doubles
from tests.support.refunds import Order, Refund, flow
from tests.support.rig import Rig

pytestmark = pytest.mark.services

APP = "tests.support.refunds:flow"


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, flow) as made:
        yield made


def settled(rig: Rig) -> dict[str, Refund]:
    found = [(r.job, Refund.model_validate_json(r.value or b"")) for r in rig.records("done")]
    assert len(found) == len(dict(found)), "each run ends once"
    return dict(found)


def signal(rig: Rig, ids: list[str], value: Any = True) -> None:
    async def send() -> None:
        async with Client(rig.settings) as client:
            for each in ids:
                await client.signal("refunds", each, "approval", value, by="ann")

    asyncio.run(send())


def steps(rig: Rig, job: str) -> list[tuple[int, str, Status]]:
    return [(s.seq, s.stage, s.status) for s in rig.states() if s.trace_id == job]


def test_branch_pair_timer_signal_and_compensation(rig: Rig) -> None:
    rig.worker(app=APP)
    plain, slow, risky, bad, late = rig.submit(
        [
            Order(n=0),
            Order(n=1, nap_s=0.5),
            Order(n=2, amount=90),
            Order(n=3, bad_book=True),
            Order(n=4, amount=90, patience_s=0.5),
        ]
    )
    rig.wait_results(4)
    signal(rig, [risky])
    rig.wait_results(5)
    found = settled(rig)
    assert found[plain].path == ("1", "2")
    assert found[slow].path == ("slept", "1", "2")
    assert (found[risky].path, found[risky].by) == (("risky", "1", "2"), "ann")
    assert found[bad].path == ("undone",)
    assert found[late].path == ("risky", "refused")
    assert steps(rig, plain) == [
        (1, "refund", Status.WAITING),
        (2, "join", Status.WAITING),
        (3, "join", Status.WAITING),
        (4, "join", Status.DONE),
    ]
    assert doubles(rig.target.calls) == {}
    assert_no_step_twice(rig)


def test_a_stage_waits_and_a_signal_may_come_first(rig: Rig) -> None:
    rig.worker(app=APP)
    ids = [f"{n:032x}" for n in (7, 8, 9)]
    signal(rig, ids[:1], "early")
    put = [(ids[0], 0, Order(n=7)), (ids[1], 0, Order(n=8)), (ids[2], 0, Order(n=9, patience_s=1))]

    async def submit() -> None:
        async with Client(rig.settings) as client:
            for job_id, _, order in put:
                await client.submit(flow, order, job_id, stage="ask")

    asyncio.run(submit())
    rig.wait_results(2)
    signal(rig, ids[1:2], {"ok": True})
    rig.wait_results(3)
    found = settled(rig)
    assert found[ids[0]].path == ("asked", "early")
    assert found[ids[1]].path == ("asked", "{'ok': True}")
    assert found[ids[2]].path == ("asked", "timed out")
    assert steps(rig, ids[1]) == [
        (1, "ask", Status.WAITING),
        (2, "join", Status.WAITING),
        (3, "join", Status.RUNNING),
        (4, "ask", Status.DONE),
    ]
    assert steps(rig, ids[0])[1:] == [(2, "join", Status.RUNNING), (3, "ask", Status.DONE)]
    # Once, though the handler ran twice.
    assert doubles(rig.target.calls) == {}
