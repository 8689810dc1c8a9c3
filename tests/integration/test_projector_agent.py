"""The projector as an agent: killed and restarted, `jobs` stays the fold of the topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once, assert_projection_is_the_fold
from tests.support.rig import Rig

pytestmark = pytest.mark.services

JOBS = 600


def test_a_projector_killed_in_mid_stream_goes_on_where_its_rows_end(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64) as rig:
        rig.worker("take", "work", "finish")
        projector = rig.worker("projector")
        # The last third waits, so that states are still to come at each kill.
        ids = rig.submit(
            [Job(n=n, wait_ms=10 + n % 40, gate="" if n < 400 else "last") for n in range(JOBS)]
        )
        for kill in (1, 2):
            _wait_projected(rig, kill * 300)
            projector.kill()
            projector = rig.worker("projector")
        assert _history(rig) < 3 * JOBS
        rig.target.open("last")
        rig.wait_results(JOBS)
        assert_all_done_once(rig, ids)
        assert_projection_is_the_fold(rig)


def test_two_projectors_share_the_work_and_one_takes_over(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64) as rig:
        rig.worker("take", "work", "finish")
        rig.worker("projector")
        other = rig.worker("projector", slot=1)
        ids = rig.submit([Job(n=n, wait_ms=10 + n % 40) for n in range(300)])
        rig.wait(lambda: _history(rig) > 200, "states are projected")
        other.kill()
        rig.wait_results(300)
        assert_all_done_once(rig, ids)
        assert_projection_is_the_fold(rig)


def _wait_projected(rig: Rig, steps: int) -> None:
    rig.wait(lambda: _history(rig) > steps, f"{steps} steps are projected")


def _history(rig: Rig) -> int:
    return int(rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"])
