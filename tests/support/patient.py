"""A flow of one stage that fails, waits and retries as each job asks; the target counts its runs.

`ask` (async) → sink `done`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel

from streams import Backoff, BadWorld, Context, Flow, Retry, stage
from tests.support import target

ATTEMPTS = 4
#: Longer waits than this are timers.
IN_PLACE = timedelta(milliseconds=500)


class Ask(BaseModel):
    n: int
    #: The attempt that is the first to succeed; beyond `ATTEMPTS`: never.
    good_at: int = 1
    #: How the earlier ones fail.
    how: Literal["retry", "raise", "world"] = "retry"
    #: The wait that the handler asks for.
    wait_ms: int = 0
    #: Each run waits at this gate before it decides.
    gate: str = ""


_POLICY = Backoff(
    attempts=ATTEMPTS,
    first=timedelta(milliseconds=20),
    limit=timedelta(milliseconds=40),
    in_place=IN_PLACE,
)


async def _ask(job: Ask, context: Context) -> Ask | Retry:
    await target.do_effect(f"run {job.n} attempt {context.attempt}", job.n)
    if job.gate:
        await target.pass_gate(job.gate)
    if context.attempt < job.good_at:
        if job.how == "raise":
            raise ValueError(f"job {job.n} fails")
        if job.how == "world":
            raise BadWorld(f"job {job.n} finds the world away")
        return Retry(timedelta(milliseconds=job.wait_ms), "not yet")
    return job


@stage("ask", emits="done", concurrency=4_000, retry=_POLICY)
async def ask(job: Ask, context: Context) -> Ask | Retry:
    """Says to the target that it runs, then does as it is told."""
    return await _ask(job, context)


@stage("ask", emits="done", retry=replace(_POLICY, in_place=timedelta(hours=1)))
async def ask_in_place(job: Ask, context: Context) -> Ask | Retry:
    """As `ask`, but every wait is in place."""
    return await _ask(job, context)


flow = Flow("patient", stages=(ask,), sinks=("done",))
held_flow = Flow("patient", stages=(ask_in_place,), sinks=("done",))
APP = "tests.support.patient:flow"
HELD_APP = "tests.support.patient:held_flow"
