"""The projector killed at each of its named points: the restart applies each record once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once, assert_projection_is_the_fold
from tests.support.rig import Rig

pytestmark = pytest.mark.services

WAVE = 20


def test_a_projector_killed_at_each_point_in_turn_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64) as rig:
        rig.worker("take", "work", "finish")
        ids: list[str] = []
        for point in ("projection.applied", "projection.committed"):
            gate = f"after {point}"
            ids += submit(rig, len(ids), gate)
            before = history(rig)
            projector = rig.worker("projector", crash_point=f"{point}:3")
            projector.expected_to_run = False
            # Each wave is a batch at least.
            while projector.running:
                seen = history(rig)
                ids += submit(rig, len(ids))
                rig.wait(
                    lambda seen=seen, projector=projector: (
                        history(rig) > seen or not projector.running
                    ),
                    "a wave is projected",
                )
            assert projector.ended() == -signal.SIGKILL, projector.log[-4000:]
            assert history(rig) > before, "some batches were committed before the kill"
            rig.target.open(gate)
            rig.wait(lambda: len(rig.states()) > history(rig), "records are to be projected")
        rig.worker("projector")
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
        assert_projection_is_the_fold(rig)


def submit(rig: Rig, first: int, gate: str = "") -> list[str]:
    return rig.submit([Job(n=first + n, wait_ms=n, gate=gate) for n in range(WAVE)])


def history(rig: Rig) -> int:
    return int(rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"])
