"""Killed at each point of a fork's and a join's way: one join, all results in order, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.forking import Sum, Whole, flow
from tests.support.judge import assert_no_step_twice, doubles
from tests.support.rig import Rig
from tests.support.worker import killed

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"
FORKS, PARTS = 30, 12


def test_a_fork_killed_at_each_point_is_joined_once(settings: Settings, tmp_path: Path) -> None:
    """Agent by agent, lives of a worker that runs it alone; all but the last end by SIGKILL."""
    lives = {
        "split": ("commit.produced:2", "commit.committed:2"),
        "part": ("commit.produced:2", "commit.committed:3"),
        "join": (
            "join.applied:2",
            "join.decided:2",
            "commit.produced:2",
            "commit.offsets_sent:2",
            "commit.committed:2",
        ),
        "gather": ("stage.handled:1", "commit.offsets_sent:1"),
    }
    changes = {"max_in_flight_records": 40, "max_commit_records": 40}
    with Rig(settings, tmp_path, flow, **changes) as rig:
        ids = rig.submit([Whole(n=n, parts=PARTS, effect=True) for n in range(FORKS)])
        for agent, points in lives.items():
            for point in points:
                killed(rig.worker(agent, app=APP, crash_point=point))
                assert not rig.drained(agent), f"work was left when {agent} died at {point}"
            survivor = rig.worker(agent, app=APP)
            rig.wait_drained(agent)
            assert survivor.stop() == 0
        rig.worker(app=APP)
        rig.wait_results(FORKS)
        rig.wait_drained(*flow.inputs)
        found = {r.job: Sum.model_validate_json(r.value or b"") for r in rig.records("done")}
        assert set(found) == set(ids)
        for job, result in found.items():
            assert [p.by for p in result.pieces] == [f"{job}/{n}" for n in range(PARTS)]
        assert_no_step_twice(rig)
        assert doubles((r.job, r.header("handoff_fork")) for r in rig.records("part")) == {}
        assert len(rig.target.effects) == FORKS * PARTS
