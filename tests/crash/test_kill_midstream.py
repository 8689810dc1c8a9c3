"""SIGKILL in mid-stream: nothing is lost, nothing is done twice (promises P1 to P3)."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from schemas.state import Status
from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import (
    assert_all_done_once,
    assert_each_effect_once,
    assert_no_step_twice,
    assert_projection_is_the_fold,
    doubles,
    steps_by_job,
)
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

KILLS, PHASE, HELD = 3, 400, 40


def test_three_kills_in_mid_stream_lose_and_double_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    chance = random.Random(3)
    # At most 128 records per stage in memory: at each kill there is a backlog, too.
    with Rig(settings, tmp_path, max_in_flight_records=128, max_commit_records=50) as rig:
        worker = rig.worker()
        ids: list[str] = []
        for kill in range(KILLS):
            gate = f"kill {kill}"
            # Some wait at a gate, so they are certainly in flight; the others stream on.
            jobs = [
                Job(
                    n=len(ids) + n,
                    wait_ms=chance.uniform(1, 200),
                    effect="repeatable",
                    gate=gate if n < HELD else "",
                )
                for n in range(PHASE)
            ]
            ids += rig.submit(jobs)
            rig.wait_results(kill * PHASE + 100)
            worker.kill()
            assert len(ids) - rig.finished() >= HELD, "produced - finished at the kill"
            assert rig.target.effects, "effects were done before the kill"
            rig.target.open(gate)
            worker = rig.worker()
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(len(ids)))
        # A call is repeated only if its process died before the answer was stored.
        assert max(Counter(key for key, _ in rig.target.calls).values()) <= 1 + KILLS
        assert len(rig.target.calls) - len(ids) <= KILLS * 128
        assert_projection_is_the_fold(rig)


def test_an_effect_that_may_have_happened_is_parked_and_never_repeated(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        worker = rig.worker()
        ids = rig.submit(
            [Job(n=n, effect="once", answer_gate="" if n % 2 else "answer") for n in range(60)]
        )
        rig.wait(lambda: rig.target.waiting("answer") == 30, "half of the calls hang")
        rig.wait_results(30)
        worker.kill()
        rig.target.open("answer")
        rig.worker()
        rig.wait_drained()
        assert doubles(key for key, _ in rig.target.calls) == {}
        assert_no_step_twice(rig)
        last = {i: states[-1] for i, states in steps_by_job(rig.states()).items()}
        assert set(last) == set(ids)
        for n in range(60):
            state = last[job_id(n)]
            assert state.status is (Status.DONE if n % 2 else Status.WAITING)
            assert n % 2 or (state.error is not None and state.stage == "work")
        doubtful = rig.sql("SELECT trace_id FROM effects WHERE status = 'in_doubt'")
        assert {row["trace_id"] for row in doubtful} == {job_id(n) for n in range(0, 60, 2)}


def test_an_effect_that_was_settled_is_not_called_again_after_a_kill(
    settings: Settings, tmp_path: Path
) -> None:
    # Kills itself with the states and hand-offs written and nothing committed: effects are settled.
    with Rig(settings, tmp_path) as rig:
        rig.hand_off("work", [(job_id(n), 1, Job(n=n, effect="once")) for n in range(50)])
        worker = rig.worker("work", crash_point="commit.produced:1")
        assert worker.ended() == -9
        settled = rig.sql("SELECT key FROM effects WHERE status = 'done'")
        assert settled, "effects were settled before the kill"
        assert rig.records("finish") == []
        calls_before = list(rig.target.calls)
        rig.worker("work")
        rig.wait_drained("work")
        again = {row["key"] for row in settled} & {
            key for key, _ in rig.target.calls[len(calls_before) :]
        }
        assert again == set()
        assert_no_step_twice(rig)
