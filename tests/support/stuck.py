"""A flow whose jobs get stuck as each asks: `wait` (long waits are timers) → `hold` (all waits are
in place) → sink `done`. Both async, with gates at the target."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel

from streams import Backoff, BadWorld, Context, Flow, Reject, Retry, stage
from tests.support import target


class Stuck(BaseModel):
    n: int
    #: What the first attempt at `wait` and at `hold` comes to.
    wait: Literal["", "timer"] = ""
    hold: Literal["", "retry", "world", "reject"] = ""
    #: How long `wait` and `hold` ask to wait.
    wait_ms: int = 0
    #: `hold` waits at this gate before anything else.
    gate: str = ""


_POLICY = Backoff(
    attempts=3, first=timedelta(milliseconds=20), in_place=timedelta(milliseconds=100)
)


@stage("wait", emits="hold", retry=_POLICY)
async def wait(job: Stuck, context: Context) -> Stuck | Retry:
    """Asks for a timer, or hands on."""
    if job.wait and context.attempt == 1:
        return Retry(timedelta(milliseconds=job.wait_ms), "not yet")
    return job


@stage("hold", emits="done", retry=replace(_POLICY, in_place=timedelta(hours=1)))
async def hold(job: Stuck, context: Context) -> Stuck | Retry | Reject:
    """Passes its gate, then fails as it is told."""
    if job.gate:
        await target.pass_gate(job.gate)
    match job.hold:
        case "retry" if context.attempt == 1:
            return Retry(timedelta(milliseconds=job.wait_ms), "the desk is busy")
        case "reject":
            return Reject("not wanted")
        case "world":
            raise BadWorld("the desk is away")
    return job


flow = Flow("stuck", stages=(wait, hold), sinks=("done",))
APP = "tests.support.stuck:flow"
