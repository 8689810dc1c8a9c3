"""Flows of one stage for the benches of retries: `python -m infra.bench.poison` and `.retries`."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Final

from infra.bench.flow import Job
from streams import Backoff, Context, Flow, Retry, stage

#: The text of the job that fails for ever.
POISON: Final = "poison"
AFTER: Final = timedelta(seconds=float(os.environ.get("BENCH_AFTER_S", "60")))
SLEEP_S: Final = 0.005
#: In place, so that it stays in its partition's way for as long as the run lasts.
_FOR_EVER: Final = Backoff(
    attempts=2**30, first=timedelta(milliseconds=50), limit=timedelta(milliseconds=500)
)


def _check(job: Job) -> Job:
    if job.text == POISON:
        raise ValueError("this one always fails")
    return job


@stage("classify", emits="done", retry=_FOR_EVER)
def classify(job: Job, _: Context) -> Job:
    return _check(job)


@stage("classify", emits="done", concurrency=2_000, retry=_FOR_EVER)
async def classify_waiting(job: Job, _: Context) -> Job:
    await asyncio.sleep(SLEEP_S)
    return _check(job)


@stage("classify", emits="done", concurrency=2_000)
async def classify_later(job: Job, context: Context) -> Job | Retry:
    return Retry(AFTER, "as told") if context.attempt == 1 else job


flow = Flow("bench", (classify,), sinks=("done",))
flow_io = Flow("bench", (classify_waiting,), sinks=("done",))
flow_later = Flow("bench", (classify_later,), sinks=("done",))
