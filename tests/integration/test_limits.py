"""A rate holds over all workers by the handlers' own record of their starts, whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.limiting import APP, PER, STARTS_VARIABLE, Call, flow, most_within, starts
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services


def test_no_second_sees_more_starts_than_the_rate_with_two_workers_one_of_them_killed(
    settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "starts"
    folder.mkdir()
    with Rig(settings, tmp_path, flow) as rig:
        rig.variables[STARTS_VARIABLE] = str(folder)
        workers = [rig.worker(slot=slot, app=APP) for slot in range(2)]
        for n, worker in enumerate(workers):
            rig.wait(lambda w=worker: "worker_ready" in w.log, f"worker {n} is ready")
        # More than may wait in memory, and some 64 of them in work at a time.
        busy = rig.submit([Call(n=n, model="busy", wait_s=3.2) for n in range(280)])
        rig.wait(lambda: len(starts(folder).get("busy", ())) >= 20, "the busy model is busy")
        quiet = rig.submit([Call(n=n, model="quiet") for n in range(300, 340)])
        free = rig.submit([Call(n=n, model="") for n in range(400, 500)])
        rig.wait_results(140)
        others = {r.job for r in rig.records("done")} & {*quiet, *free}
        before = starts(folder)
        assert len(others) == 140 or len(before["busy"]) < 200, (
            "others do not wait for the busy one"
        )
        rig.wait(lambda: len(starts(folder)["busy"]) >= 120, "some are done")
        workers[1].kill()
        rig.wait_results(420)
        rig.wait_drained()
        found = starts(folder)
        print({key: (len(times), most_within(times, PER)) for key, times in found.items()})
        print({key: round((times[-1] - times[0]) / 1e6, 2) for key, times in found.items()})
        assert most_within(found["busy"], PER) <= 20
        assert most_within(found["quiet"], PER) <= 20
        assert sorted(r.job for r in rig.records("done")) == sorted([*busy, *quiet, *free])
        sent = [s for s in rig.states() if s.wakes_at is not None]
        print(len(sent), sent[0].error, [s.attempts for s in sent][:5])
        print(workers[0].log[-3000:])
        assert workers[0].stop() == 0
        assert rig.sql("SELECT * FROM limit_holds") == []
    assert job_id(0) in busy
