"""`handoff audit` on real runs: clean ones raise nothing, each seeded fault is named and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.audit import Options, audited
from streams.config import Settings
from tests.support.flows import Job
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services


def test_smoke(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        worker = rig.worker()
        rig.submit([Job(n=n, effect="repeatable") for n in range(200)])
        rig.wait_results(200)
        rig.wait_drained()
        rig.wait(lambda: rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"] == 600, "projected")
        worker.stop()
        with audited(rig.settings) as verdict:
            print(verdict.line())
            for f in verdict.findings():
                print(f)
            print(verdict.summary())
            assert verdict.clean
