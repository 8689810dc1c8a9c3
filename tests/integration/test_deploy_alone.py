"""A stage is stopped, changed and started alone; the others do not notice (promise P10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice
from tests.support.rig import Rig

pytestmark = pytest.mark.services


def test_a_stage_is_stopped_changed_and_started_alone_and_works_off_its_backlog(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        others = rig.worker("take", "finish")
        work = rig.worker("work")
        rig.submit([Job(n=n) for n in range(200)])
        rig.wait_results(200)
        assert work.stop() == 0

        rig.submit([Job(n=n) for n in range(200, 500)])
        rig.wait(lambda: len(rig.records("work")) == 500, "a backlog lies before the stage")
        assert not rig.drained("work")
        assert rig.finished() == 200

        rig.worker("work", app="tests.support.flows:changed_flow")
        rig.wait_results(500)
        rig.wait_drained()
        assert_no_step_twice(rig)
        assert others.running
        for record in rig.records("done"):
            job = Job.model_validate_json(record.value or b"")
            changed = ("changed",) if job.n >= 200 else ()
            assert job.path == ("take", "work", *changed, "finish")
