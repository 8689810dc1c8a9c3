"""The bench's three hops as handoff stages: `handoff worker --app infra.bench.flow:flow`.

`flow` has sync stages, `flow_io` async ones that each wait `BENCH_SLEEP_MS` (50) for their model.
Both are named `bench`, so one set of topics serves either.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from pydantic import BaseModel, ConfigDict

from streams import Context, Flow, stage

SLEEP_S: Final = int(os.environ.get("BENCH_SLEEP_MS", "50")) / 1000
#: Handlers that wait at once: 50 ms each, so 2,000 are 40,000 jobs/s.
WAITING: Final = 2_000


class Job(BaseModel):
    """A job of about 300 bytes, spelled as on the wire; `seq` counts the hops."""

    model_config = ConfigDict(extra="ignore")

    traceId: str
    i: int
    text: str
    t0: float
    stage: str = ""
    seq: int = 0


def _advance(job: Job, name: str) -> Job:
    job.stage = name
    job.seq += 1
    return job


@stage("classify", emits="enrich")
def classify(job: Job, _: Context) -> Job:
    return _advance(job, "classify")


@stage("enrich", emits="act")
def enrich(job: Job, _: Context) -> Job:
    return _advance(job, "enrich")


@stage("act", emits="done")
def act(job: Job, _: Context) -> Job:
    return _advance(job, "act")


@stage("classify", emits="enrich", concurrency=WAITING)
async def classify_waiting(job: Job, _: Context) -> Job:
    await asyncio.sleep(SLEEP_S)
    return _advance(job, "classify")


@stage("enrich", emits="act", concurrency=WAITING)
async def enrich_waiting(job: Job, _: Context) -> Job:
    await asyncio.sleep(SLEEP_S)
    return _advance(job, "enrich")


@stage("act", emits="done", concurrency=WAITING)
async def act_waiting(job: Job, _: Context) -> Job:
    await asyncio.sleep(SLEEP_S)
    return _advance(job, "act")


flow = Flow("bench", (classify, enrich, act), sinks=("done",))
flow_io = Flow("bench", (classify_waiting, enrich_waiting, act_waiting), sinks=("done",))
