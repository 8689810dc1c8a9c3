"""A flow of one stage whose handlers write down when they start, and what its rate promises.

`call` (async) → sink `done`. Starts go into files of the folder that `TEST_STARTS` names, one for
each process: what a killed worker had started counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from streams import Context, Flow, Limit, stage

STARTS_VARIABLE = "TEST_STARTS"
PER = timedelta(seconds=1)


class Call(BaseModel):
    n: int
    model: str
    wait_s: float = 0.0


def write_down(key: str) -> None:
    """The moment of a start, in one write: a kill leaves whole lines."""
    line = f"{time.time_ns() // 1000} {key}\n".encode()
    path = Path(os.environ[STARTS_VARIABLE]) / str(os.getpid())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def starts(folder: Path) -> dict[str, list[int]]:
    """Every start that was written down, epoch microseconds, by key; ascending."""
    found: dict[str, list[int]] = defaultdict(list)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            at, key = line.split(" ")
            found[key].append(int(at))
    return {key: sorted(times) for key, times in found.items()}


def most_within(starts_us: Iterable[int], per: timedelta) -> int:
    """The most starts in any half-open interval of this length: what a rate promises."""
    found, per_us = sorted(starts_us), per // timedelta(microseconds=1)
    return max((bisect_left(found, s + per_us) - n for n, s in enumerate(found)), default=0)


model = Limit("model", rate=20, per=PER, key=lambda call: call.model or None)


@stage("call", emits="done", concurrency=256, limits=model)
async def call(job: Call, _: Context) -> Call:
    """Writes down that it starts, and takes its time."""
    write_down(job.model)
    await asyncio.sleep(job.wait_s)
    return job


flow = Flow("calls", (call,), sinks=("done",))
APP = "tests.support.limiting:flow"
