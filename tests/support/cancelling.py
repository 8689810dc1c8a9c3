"""A flow whose jobs come to rest in every kind of state, for tests of control.

`take` forks what is to be forked and hands on the rest → `work` does what the job asks for → `last`
→ `done`; `gather` joins. An effect, where one is asked for, is done before the job comes to rest.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, Literal

from pydantic import BaseModel

from streams import Backoff, Context, Done, Emit, Flow, Fork, Joined, Retry, stage
from tests.support import target
from tests.support.flows import mark

#: How many handlers of `work` run at once in a worker.
CONCURRENCY: Final = 40
APP: Final = "tests.support.cancelling:flow"

Rest = Literal["gate", "heed", "place", "timer", "doubt", "pass", "done"]


class Errand(BaseModel):
    """`rest` is where the job comes to rest: in its handler ("gate" does not look up, "heed" does),
    waiting in place or for a timer, parked, beyond `work`, or at its end. With `parts` it is forked
    into one for each of them."""

    n: int
    rest: Rest = "pass"
    parts: tuple[Rest, ...] = ()
    effect: bool = False


async def _speechless(*, idempotency_key: str) -> int:
    raise RuntimeError("the line went dead")


@stage("take", emits="work", joins="gather")
def take(errand: Errand, _: Context) -> Emit | Fork:
    """Forks, or hands on."""
    if not errand.parts:
        return Emit("work", errand)
    parts = [Errand(n=n, rest=rest, effect=errand.effect) for n, rest in enumerate(errand.parts)]
    return Fork(parts, join="gather")


_TEN = timedelta(minutes=10)
_PATIENT = Backoff(attempts=3, first=_TEN, limit=_TEN, in_place=_TEN)


@stage("work", emits="last", concurrency=CONCURRENCY, retry=_PATIENT)
async def work(errand: Errand, job: Context) -> Emit | Done | Retry:
    """Does its effect, then comes to rest."""
    if errand.effect:
        await job.effect("mark", mark, errand.n, "", idempotent=True)
    match errand.rest:
        case "gate":
            await target.pass_gate("work")
        case "heed":
            while not job.cancelled:
                await asyncio.sleep(0.02)
        case "place":
            raise ValueError("not yet")
        case "timer":
            return Retry(timedelta(hours=1), "later")
        case "doubt":
            await job.effect("say", _speechless)
        case "done":
            return Done(errand)
    return Emit("last", errand)


@stage("last", emits="done")
def last(errand: Errand, _: Context) -> Emit:
    """Hands to the sink."""
    return Emit("done", errand)


@stage("gather", emits="done")
async def gather(results: Joined[Errand], job: Context) -> Emit:
    """The join."""
    return Emit("done", Errand(n=len([x async for x in results])))


flow = Flow("errands", (take, work, last, gather), sinks=("done",))
