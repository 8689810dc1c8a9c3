"""What may have been delivered before is looked up before it runs (design: suspects)."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once, assert_projection_is_the_fold
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

JOBS = 120
STAGES = ("take", "work", "finish")


def _run_and_stop(rig: Rig) -> list[str]:
    """A finished run, its workers stopped."""
    worker = rig.worker()
    ids = rig.submit([Job(n=n, wait_ms=n % 5, effect="once") for n in range(JOBS)])
    rig.wait_results(JOBS)
    rig.wait_drained()
    assert_projection_is_the_fold(rig)
    assert worker.stop() == 0
    return ids


def _back_to_0(rig: Rig) -> None:
    """As `kafka-consumer-groups --reset-offsets --to-earliest` does: no metadata."""
    for stage in STAGES:
        rig.set_committed(stage, dict.fromkeys(range(rig.settings.partitions), (0, "")))


def _skips(rig: Rig) -> dict[tuple[str, str], int]:
    return {(r["stage"], r["reason"]): r["records"] for r in rig.sql("SELECT * FROM skips")}


def test_groups_set_back_to_0_and_the_same_jobs_again_change_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        ids = _run_and_stop(rig)
        states, calls = len(rig.states()), list(rig.target.calls)
        _back_to_0(rig)
        rig.submit([Job(n=n, wait_ms=n % 5, effect="once") for n in range(JOBS)], ids)
        rig.worker()
        rig.wait_drained()
        assert len(rig.states()) == states
        assert [len(rig.records(s)) for s in (*STAGES, "done")] == [2 * JOBS, JOBS, JOBS, JOBS]
        assert rig.target.calls == calls
        skips = _skips(rig)
        assert skips[("work", "finished")] == skips[("finish", "finished")] == JOBS
        assert skips[("take", "finished")] + skips.get(("take", "duplicate"), 0) == 2 * JOBS
        # And what is new runs.
        more = rig.submit([Job(n=n) for n in range(JOBS, JOBS + 20)])
        rig.wait_results(JOBS + 20)
        assert_all_done_once(rig, [*ids, *more])


def test_a_worker_killed_while_it_skips_what_is_finished_goes_on_skipping(
    settings: Settings, tmp_path: Path
) -> None:
    """The commits of the first life carry a map; the second life must still know what they cover
    not: that the group had been set back."""
    with Rig(settings, tmp_path, partitions=1) as rig:
        ids = _run_and_stop(rig)
        states, calls = len(rig.states()), list(rig.target.calls)
        _back_to_0(rig)
        killed = rig.worker(
            "work", "projector", max_in_flight_records=10, crash_point="commit.committed:2"
        )
        assert killed.ended() == -9
        head, metadata = rig.committed("work")[0]
        assert 0 < head < JOBS, "only a part was skipped"
        assert metadata != ""
        rig.worker()
        rig.wait_drained()
        assert len(rig.states()) == states
        assert rig.target.calls == calls
        assert_all_done_once(rig, ids)


def test_a_group_set_back_with_work_unfinished_skips_the_finished_and_runs_the_rest(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, grace_s=0.5) as rig:
        worker = rig.worker()
        ids = rig.submit([Job(n=n, gate="" if n % 3 else "late") for n in range(60)])
        rig.wait_results(40)
        rig.wait(lambda: rig.target.waiting("late") == 20, "the rest is at work")
        assert worker.stop() == 0
        _back_to_0(rig)
        rig.target.open("late")
        rig.worker()
        rig.wait_results(60)
        assert_all_done_once(rig, ids)
        assert _skips(rig)[("work", "finished")] == 40


def test_a_tombstone_does_not_take_the_id_from_a_job_that_comes_later(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        rig.worker()
        rig.put("take", job_id(1).encode(), None)
        rig.flush()
        rig.wait_drained("take")
        assert rig.states() == []
        ids = rig.submit([Job(n=1)])
        rig.wait_drained()
        assert_all_done_once(rig, ids)
