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
from streams.audit import Options, audited
from streams.client import Client
from streams.config import Settings
from tests.support.audits import project
from tests.support.commands import Command
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
    rig.submit([Order(n=7), Order(n=8), Order(n=9, patience_s=1)], ids, stage="ask")
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


def test_a_cancelled_run_is_told_and_undoes_what_it_did(settings: Settings, tmp_path: Path) -> None:
    """While it waits for a person, and while one of a pair of calls is at work; a stage's wait."""
    with Rig(settings, tmp_path, flow, cancel_grace_s=0.2) as rig:
        rig.worker(app=APP)
        risky, pair, plain = rig.submit(
            [Order(n=0, amount=90), Order(n=1, gate="shut"), Order(n=2)]
        )
        (wait,) = rig.submit([Order(n=3)], stage="ask")
        rig.wait(lambda: rig.target.waiting("shut") == 1, "a call is at work")
        rig.wait(lambda: len(steps(rig, f"{pair}/1")) == 1, "the other call is over")
        rig.wait(
            lambda: (
                {j["parent"] for j in rig.sql("SELECT parent FROM runs WHERE waits <> '{}'")}
                == {risky, pair, wait}
            ),
            "three wait",
        )
        rig.wait_results(1)
        done = Command(rig.settings, tmp_path)(
            "jobs", "cancel", risky, pair, wait, "--by", "eve", "--reason", "no more", "--wait"
        )
        assert done.returncode == 0, done.stderr
        for job in (risky, pair, wait):
            assert steps(rig, job)[-1][1:] == ("join", Status.CANCELLED)
        said = {s.trace_id: s.error.message for s in rig.states() if s.error is not None}
        assert said[risky] == "cancelled by eve: no more"
        # The call that was at work is cut off; the one that was done is undone, in spite of it all.
        assert steps(rig, f"{pair}/2") == [(1, "book", Status.CANCELLED)]
        assert steps(rig, f"{pair}/3") == [(1, "undo", Status.DONE)]
        assert set(settled(rig)) == {plain}
        assert rig.dead_letters("join") == []
        assert doubles(rig.target.calls) == {}
        assert_no_step_twice(rig)
        project(rig)
        with audited(rig.settings, Options()) as verdict:
            assert verdict.clean, [*verdict.findings()]
