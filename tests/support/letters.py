"""Dead letters for tests: put into topics as a stage would, or made by a stage; and what became of
them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from typing import Any

from confluent_kafka import Producer

from schemas import headers as h
from schemas.state import Status
from streams.config import Settings
from tests.support.commands import Completed
from tests.support.flows import Job
from tests.support.judge import (
    assert_no_step_twice,
    assert_projection_is_the_fold,
    steps_by_job,
)
from tests.support.rig import Rig, job_id
from tests.support.topics import Record
from tests.unit.deadletter.fakes import told

NOW_MS = int(time.time() * 1000)
MENDED = "tests.support.mended:flow"
STAGES = ("work", "finish", "projector")
ALL = ("--filter", "stage=work", "--yes")


def letters_of(rig: Rig, jobs: int, **fields: object) -> list[str]:
    """Jobs that `work` has failed, one letter each; the worker that did it has stopped."""
    ids = [job_id(n) for n in range(jobs)]
    worker = rig.worker("work", "projector")
    rig.hand_off("work", [(i, 1, Job(n=n, fault="reject", **fields)) for n, i in enumerate(ids)])
    rig.wait(lambda: len(rig.dead_letters("work")) >= jobs, f"{jobs} letters")
    rig.wait_drained("work")
    assert_projection_is_the_fold(rig)
    assert worker.stop() == 0
    return ids


def assert_each_has_one_result(rig: Rig, ids: Collection[str]) -> None:
    """By job-state, the sink and the steps; the failed step stays in the history."""
    rig.wait_drained("work", "finish")
    assert_no_step_twice(rig)
    steps = steps_by_job(rig.states())
    for trace_id in ids:
        told = [(s.seq, s.stage, s.status, s.attempts) for s in steps[trace_id]]
        assert told == [
            (2, "work", Status.FAILED, 1),
            (3, "work", Status.RUNNING, 1),
            (4, "finish", Status.DONE, 1),
        ], trace_id
    assert Counter(r.job for r in rig.records("done")) == Counter(ids)
    assert_projection_is_the_fold(rig)


def redriven_records(rig: Rig) -> list[Record]:
    return [r for r in rig.records("work") if r.header(h.REDRIVE)]


def actions(rig: Rig, action: str = "redrive") -> list[dict[str, object]]:
    return rig.sql("SELECT * FROM dead_letter_actions WHERE action = %s ORDER BY id", action)


def ran(completed: Completed, code: int = 0) -> Completed:
    assert completed.returncode == code, (completed.stdout, completed.stderr)
    return completed


class Letters:
    """Puts letters into the topics of the flow `notes` of one installation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._producer = Producer({"bootstrap.servers": settings.kafka_bootstrap_servers})

    def topic(self, stage: str) -> str:
        return self.settings.names.dead_letter_topic("notes", stage)

    def put(
        self,
        stage: str,
        n: int,
        *,
        value: bytes = b'{"number": "x"}',
        headers: list[Any] | None = None,
        ago_ms: int = 0,
        **facts: str,
    ) -> str:
        """A letter of job `n` at `stage`, in partition 0; the job's id."""
        origin = self.settings.names.stage_topic("notes", stage)
        facts = {"topic": origin, "stage": stage, "job": job_id(n), "message": f"no {n}", **facts}
        self._producer.produce(
            self.topic(stage),
            value,
            job_id(n).encode(),
            0,
            timestamp=NOW_MS - ago_ms,
            headers=told(**facts) if headers is None else headers,
        )
        assert self._producer.flush(30) == 0
        return job_id(n)
