"""The flow of the soak: each job has one effect at the desk, of one of three natures.

`take` (sync) → `work` (async: waits, does the effect, takes its turn) → `finish` (sync) → `done`.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel

from streams import (
    Backoff,
    Context,
    DidNotHappen,
    Flow,
    Happened,
    Reject,
    Retry,
    stage,
)
from streams.context import Reconciled
from tests.soak import desk

#: What the desk does with a key that it has seen, and whether it can be asked about one.
Nature = Literal["repeatable", "asked", "once"]
Turn = Literal["", "retry", "later", "reject", "raise"]


class Errand(BaseModel):
    n: int
    nature: Nature
    #: After the effect: hand on, try again (in place, or by a timer), or fail.
    turn: Turn = ""
    wait_ms: float = 0
    text: str = ""
    path: tuple[str, ...] = ()

    @property
    def succeeds(self) -> bool:
        return self.turn not in ("reject", "raise")

    def past(self, name: str) -> Errand:
        return self.model_copy(update={"path": (*self.path, name)})


class Filed(BaseModel):
    """The desk's answer."""

    n: int


async def file_errand(n: int, nature: Nature, *, idempotency_key: str) -> Filed:
    """Raises `EffectNotDone` where the desk refused; `ConnectionError` if it did not answer."""
    return Filed(n=await desk.file(idempotency_key, n, honours_keys=nature == "repeatable"))


async def look_up(n: int, nature: Nature, *, idempotency_key: str) -> Reconciled[Filed]:
    """Asks the desk's record. A refusal to answer would be no answer: it is not asked to refuse."""
    found = await desk.look(idempotency_key)
    return DidNotHappen() if found is None else Happened(Filed(n=found))


@stage("take", emits="work")
def take(errand: Errand, _: Context) -> Errand:
    """Takes a submission."""
    return errand.past("take")


#: Patient enough for the longest time that the desk refuses.
_PATIENT = Backoff(attempts=7, first=timedelta(milliseconds=200), limit=timedelta(seconds=3))


@stage("work", emits="finish", concurrency=200, retry=_PATIENT)
async def work(errand: Errand, context: Context) -> Errand | Reject | Retry:
    """Waits as for a model's answer, files the errand, takes its turn."""
    await asyncio.sleep(errand.wait_ms / 1000)
    filed = await context.effect(
        "file",
        file_errand,
        errand.n,
        errand.nature,
        idempotent=errand.nature == "repeatable",
        reconcile=look_up if errand.nature == "asked" else None,
    )
    assert filed.n == errand.n
    match errand.turn:
        case "reject":
            return Reject("not wanted")
        case "raise":
            raise ValueError(f"errand {errand.n} always fails")
        case "retry" if context.attempt == 1:
            return Retry(timedelta(milliseconds=50), "once more")
        case "later" if context.attempt == 1:
            return Retry(timedelta(seconds=8), "not yet")
    return errand.past("work")


@stage("finish", emits="done")
def finish(errand: Errand, _: Context) -> Errand:
    """Hands to the sink."""
    return errand.past("finish")


flow = Flow("soak", stages=(take, work, finish), sinks=("done",))


def some_errand(chance: random.Random, n: int) -> Errand:
    """Most go the whole way; a few take every other."""
    (nature,) = chance.choices(("repeatable", "asked", "once"), (5, 3, 2))
    (turn,) = chance.choices(("", "retry", "later", "reject", "raise"), (940, 30, 15, 10, 5))
    text = "x" * chance.randrange(100, 600)
    return Errand(n=n, nature=nature, turn=turn, wait_ms=chance.uniform(0, 60), text=text)


def job_id(seed: int, n: int) -> str:
    return f"{(seed + 1 << 32) + n:032x}"
