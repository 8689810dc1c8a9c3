"""The whole flow: from a submission to the sink, judged by topics and Postgres."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from schemas import headers as h
from schemas.ids import span_id
from schemas.state import Status
from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import (
    assert_all_done_once,
    assert_each_effect_once,
    assert_projection_is_the_fold,
    steps_by_job,
)
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

JOBS = 300


def test_a_job_goes_through_all_stages_and_leaves_its_whole_story(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        rig.worker()
        ids = rig.submit([Job(n=n, wait_ms=n % 7, effect="repeatable") for n in range(JOBS)])
        rig.wait_results(JOBS)
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(JOBS))
        assert len(rig.target.calls) == JOBS
        assert_projection_is_the_fold(rig)
        _check_states(rig)
        for stage, writer, seq in (
            ("work", "take", 1),
            ("finish", "work", 2),
            ("done", "finish", 3),
        ):
            _check_hand_offs(rig, stage, writer, seq)
        assert rig.workers[0].stop() == 0


def _check_states(rig: Rig) -> None:
    sources = {"take": "take", "work": "work", "finish": "finish"}
    for states in steps_by_job(rig.states()).values():
        assert [s.to for s in states] == [("work",), ("finish",), ("done",)]
        assert len({s.timing.born_us for s in states if s.timing}) == 1
        for state in states:
            assert state.flow == "run"
            assert state.attempts == 1
            assert state.error is None
            assert state.worker is not None
            assert state.worker.startswith("0.")
            timing, source = state.timing, state.consumed
            assert timing is not None
            assert timing.born_us <= timing.polled_us <= timing.started_us <= timing.finished_us
            assert source is not None
            assert source.topic == rig.topic(sources[state.stage])
            assert state.data["path"][-1] == state.stage
        assert states[-1].status is Status.DONE
    consumed = [s.consumed for s in rig.states()]
    assert len(set(consumed)) == len(consumed)


def _check_hand_offs(rig: Rig, stage: str, writer: str, seq: int) -> None:
    for record in rig.records(stage):
        assert len(dict(record.headers)) == len(record.headers), "a header stands twice"
        headers = {name: (value or b"").decode() for name, value in record.headers}
        assert headers[h.CE_SPECVERSION] == "1.0"
        assert headers[h.CE_ID] == f"{record.job}:{seq}"
        assert headers[h.CE_SOURCE] == f"handoff/run/{writer}"
        assert headers[h.CE_TYPE] == "run.job"
        assert headers[h.TRACEPARENT] == f"00-{record.job}-{span_id(record.job, seq)}-01"
        assert record.headers[0][0] == h.HOP
        assert re.fullmatch(rf"{seq};\d{{16}};run", headers[h.HOP])
        assert datetime.fromisoformat(headers[h.CE_TIME]).tzinfo is not None


def test_the_same_submission_twice_while_the_first_is_unfinished_is_one_job(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        rig.worker()
        jobs = [Job(n=n, gate="slow") for n in range(20)]
        ids = rig.submit(jobs)
        rig.wait(lambda: rig.target.waiting("slow") == 20, "all jobs are at work")
        rig.submit(jobs, ids)
        rig.wait(lambda: rig.drained("take"), "the second submissions are consumed")
        assert len(rig.records("work")) == 20
        rig.target.open("slow")
        rig.wait_results(20)
        assert_all_done_once(rig, ids)
        skips = rig.sql("SELECT stage, reason, records FROM skips")
        assert skips == [{"stage": "take", "reason": "duplicate", "records": 20}]


def test_a_job_may_start_at_a_later_stage_by_any_producer(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        rig.worker("work", "finish")
        rig.put("work", job_id(7).encode(), b'{"n": 7}')
        rig.put("work", None, b'{"n": 8}')
        rig.flush()
        rig.wait_results(2)
        stories = {
            tuple((s.seq, s.stage) for s in states)
            for states in steps_by_job(rig.states()).values()
        }
        assert stories == {((1, "work"), (2, "finish"))}
        assert job_id(7) in {r.job for r in rig.records("done")}
