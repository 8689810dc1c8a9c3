"""Public cases 3 and 4: a bad record ends nothing and vanishes nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import headers as h
from schemas.state import Status
from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once, assert_no_step_twice, steps_by_job
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

JOBS = 200


def test_case_3_one_bad_json_in_a_batch_is_a_dead_letter_and_the_agent_goes_on(
    settings: Settings, tmp_path: Path
) -> None:
    """robinhood/faust#586: the batching agent ended, silently, and its worker looked well."""
    with Rig(settings, tmp_path, partitions=1) as rig:
        # All are there before the worker starts, so that they come in one batch.
        ids = [job_id(n) for n in range(JOBS)]
        for n, key in enumerate(ids):
            value = b'{"n": ' if n == JOBS // 2 else Job(n=n).model_dump_json().encode()
            rig.put("take", key.encode(), value)
        rig.flush()
        worker = rig.worker()
        rig.wait_results(JOBS - 1)
        rig.wait_drained()
        bad = ids[JOBS // 2]
        (letter,) = rig.dead_letters("take")
        assert (letter.key, letter.value) == (bad.encode(), b'{"n": ')
        assert letter.header(h.DLQ_ERROR) == b"bad_record"
        # The same agent takes what comes after it.
        more = rig.submit([Job(n=JOBS + n) for n in range(20)])
        rig.wait_results(JOBS + 19)
        rig.wait_drained()
        steps = steps_by_job(rig.states())
        assert {i: s[-1].status for i, s in steps.items()} == {
            i: Status.FAILED if i == bad else Status.DONE for i in [*ids, *more]
        }
        assert_no_step_twice(rig)
        assert worker.stop() == 0


def test_case_4_a_null_value_is_no_job_and_the_offset_moves_past_it(
    settings: Settings, tmp_path: Path
) -> None:
    """robinhood/faust#143, #439: it crashed the agent, or the lag stuck at it."""
    with Rig(settings, tmp_path, partitions=1) as rig:
        for n in range(JOBS):
            if n % 10 == 0:
                rig.put("take", job_id(5_000 + n).encode(), None)
        rig.flush()
        ids = rig.submit([Job(n=n) for n in range(JOBS)])
        # The last records of the topic, too, so that only they can hold the offset back.
        for key in (job_id(9_000).encode(), None, b"", b"\xff"):
            rig.put("take", key, None)
        rig.flush()
        worker = rig.worker()
        rig.wait_results(JOBS)
        assert_all_done_once(rig, ids)
        assert rig.committed("take")[0][0] >= len(rig.records("take"))
        assert rig.dead_letters("take") == []
        assert worker.stop() == 0
        # Nor do they come again.
        rig.worker()
        rig.wait_drained()
        assert_all_done_once(rig, ids)
