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

JOBS = 300


def test_a_projector_killed_at_each_point_in_turn_loses_and_doubles_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64) as rig:
        rig.worker("take", "work", "finish")
        # The last third waits, so that states are still to come at each kill.
        ids = rig.submit(
            [Job(n=n, wait_ms=20 + n % 40, gate="" if n < 200 else "last") for n in range(JOBS)]
        )
        # Some batches are through, and one is just written (committed): then it dies.
        for point in ("projection.applied:3", "projection.committed:3"):
            before = history(rig)
            projector = rig.worker("projector", crash_point=point)
            assert projector.ended() == -signal.SIGKILL, projector.log[-4000:]
            assert history(rig) > before, "some batches were committed before the kill"
            assert history(rig) < 3 * JOBS, "records were still to be projected"
        rig.target.open("last")
        rig.worker("projector")
        rig.wait_results(JOBS)
        assert_all_done_once(rig, ids)
        assert_projection_is_the_fold(rig)


def history(rig: Rig) -> int:
    return int(rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"])
