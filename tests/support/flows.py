"""Flows for tests: three stages whose behaviour the job itself asks for.

`take` (sync) → `work` (async: waits, gates, effects, faults) → `finish` (sync) → sink `done`.
Each stage adds its name to `path`, so a result tells the way that it took.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel

from streams import Backoff, Context, Flow, Reject, Retry, stage
from tests.support import target


class Job(BaseModel):
    n: int
    #: How long `work` waits, as a model call would.
    wait_ms: float = 0
    #: `work` waits until the test opens the gate of this name.
    gate: str = ""
    #: An effect at the target: one that honours its key, or one that must never be repeated.
    effect: Literal["", "repeatable", "once"] = ""
    #: The target does the effect, but answers only when this gate is opened.
    answer_gate: str = ""
    fault: Literal[
        "",
        "raise",
        "unprintable",
        "speechless",
        "reject",
        "long reject",
        "retry",
        "stubborn",
        "deaf",
    ] = ""
    path: tuple[str, ...] = ()

    def past(self, name: str) -> Job:
        return self.model_copy(update={"path": (*self.path, name)})


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Mark(BaseModel):
    """What the target answers to an effect."""

    n: int


async def mark(n: int, answer_gate: str, *, idempotency_key: str) -> Mark:
    """The effect: the target writes down the call, and the effect if the key is new to it."""
    return Mark(n=await target.do_effect(idempotency_key, n, answer_gate))


@stage("take", emits="work")
def take(job: Job, _: Context) -> Job:
    """Takes a submission."""
    return job.past("take")


async def _pass_whatever_comes(gate: str) -> None:
    while True:
        try:
            return await target.pass_gate(gate)
        except asyncio.CancelledError:
            continue


async def _work(job: Job, context: Context) -> Job | Reject | Retry:
    if job.gate:
        await (_pass_whatever_comes if job.fault == "deaf" else target.pass_gate)(job.gate)
    if job.wait_ms:
        await asyncio.sleep(job.wait_ms / 1000)
    if job.effect:
        idempotent = job.effect == "repeatable"
        done = await context.effect("mark", mark, job.n, job.answer_gate, idempotent=idempotent)
        assert done.n == job.n
    return _faulty(job, context) or job.past("work")


def _faulty(job: Job, context: Context) -> Reject | Retry | None:
    match job.fault:
        case "raise":
            raise ValueError(f"job {job.n} always fails")
        case "unprintable":
            raise ValueError("half a pair: \ud800, and a NUL: \0")
        case "speechless":
            raise _Speechless
        case "reject":
            return Reject("not wanted")
        case "long reject":
            return Reject("no " * 2_000_000)
        case "retry" if context.attempt == 1:
            return Retry(timedelta(milliseconds=50), "once more")
        case "stubborn":
            return Retry(timedelta(milliseconds=1), "never")
    return None


_QUICK = Backoff(attempts=3, first=timedelta(milliseconds=20))


@stage("work", emits="finish", concurrency=2_000, retry=_QUICK)
async def work(job: Job, context: Context) -> Job | Reject | Retry:
    """Waits, does its effect, hands on."""
    return await _work(job, context)


@stage("work", emits="finish", concurrency=2_000, retry=_QUICK)
async def changed_work(job: Job, context: Context) -> Job | Reject | Retry:
    """A later release of `work`."""
    outcome = await _work(job, context)
    return outcome.past("changed") if isinstance(outcome, Job) else outcome


@stage("finish", emits="done")
def finish(job: Job, _: Context) -> Job:
    """Hands to the sink."""
    return job.past("finish")


flow = Flow("run", stages=(take, work, finish), sinks=("done",))
changed_flow = Flow("run", stages=(take, changed_work, finish), sinks=("done",))
