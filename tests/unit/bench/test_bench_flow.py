"""The bench's stages, called like any stage: no broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.bench import flow as bench
from infra.bench.load import make_job
from schemas.ids import is_job_id
from streams.context import Context


class NoEffects:
    async def run(self, call: Any) -> Any:
        raise AssertionError("The bench has no effects.")


def context(stage: str) -> Context:
    return Context("0" * 31 + "1", "bench", stage, 1, 1, NoEffects())


def a_job() -> bench.Job:
    return bench.Job.model_validate_json(make_job(7)[1])


def test_a_job_is_keyed_by_a_job_id_and_about_300_bytes() -> None:
    key, value, _ = make_job(7)
    assert is_job_id(key.decode())
    assert json.loads(value)["traceId"] == key.decode()
    assert 250 < len(value) < 350


def test_three_sync_hops_count_three_and_name_the_last_stage() -> None:
    job = a_job()
    for each in bench.flow.stages:
        job = each(job, context(each.name))
    assert (job.stage, job.seq) == ("act", 3)


async def test_three_waiting_hops_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SLEEP_S", 0)
    job = a_job()
    for each in bench.flow_io.stages:
        assert each.is_async
        job = await each(job, context(each.name))
    assert (job.stage, job.seq) == ("act", 3)


def test_both_flows_use_the_same_topics() -> None:
    assert [s.name for s in bench.flow.stages] == [s.name for s in bench.flow_io.stages]
    assert bench.flow.sinks == bench.flow_io.sinks == ("done",)
