"""A flow that forks, for tests: `split` → as many `part`s as the job asks for → `gather` → `done`.

A part may wait, do an effect, fail until MENDED is set, or fork again; the result names every part
that came, in the order in which the join gave them.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from pydantic import BaseModel

from streams import Context, Done, Emit, Flow, Fork, Joined, Reject, stage
from streams.outcome import OnMissing
from tests.support import target
from tests.support.flows import mark

MENDED = "TESTS_FORKS_MENDED"


class Whole(BaseModel):
    """A job: `parts` of them, of which those in `bad` fail and those in `lost` wait for a gate."""

    n: int
    parts: int
    #: Each part forks again into so many, `depth` times over.
    depth: int = 0
    bad: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    gate: str = "lost"
    wait_ms: float = 0
    effect: bool = False
    on_missing: OnMissing = "wait"
    timeout_s: float | None = None
    #: Forks once more after the join.
    again: bool = False


class Part(BaseModel):
    n: int
    bad: bool = False
    lost: bool = False
    gate: str = "lost"
    wait_ms: float = 0
    effect: bool = False
    parts: int = 0
    depth: int = 0


class Piece(BaseModel):
    n: int
    by: str
    under: tuple[Piece, ...] = ()


class Sum(BaseModel):
    n: int = 0
    pieces: tuple[Piece, ...] = ()
    failed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def _parts(job: Whole) -> list[Part]:
    return [
        Part(
            n=n,
            bad=n in job.bad,
            lost=n in job.lost,
            gate=job.gate,
            wait_ms=job.wait_ms,
            effect=job.effect,
            parts=job.parts if job.depth else 0,
            depth=job.depth,
        )
        for n in range(job.parts)
    ]


@stage("split", emits="part", joins="gather")
def split(job: Whole, _: Context) -> Fork:
    """Forks."""
    timeout = None if job.timeout_s is None else timedelta(seconds=job.timeout_s)
    return Fork(_parts(job), join="gather", timeout=timeout, on_missing=job.on_missing)


@stage("part", emits="part", joins="regather", concurrency=2_000)
async def part(job: Part, context: Context) -> Done | Fork | Reject:
    """One branch."""
    if job.lost:
        await target.pass_gate(job.gate)
    if job.wait_ms:
        await asyncio.sleep(job.wait_ms / 1000)
    if job.bad and not os.environ.get(MENDED):
        return Reject(f"part {job.n} is bad")
    if job.effect:
        await context.effect("mark", mark, job.n, "", idempotent=True)
    if job.depth:
        inner = [Part(n=n, parts=job.parts, depth=job.depth - 1) for n in range(job.parts)]
        return Fork(inner, join="regather")
    return Done(Piece(n=job.n, by=context.trace_id))


@stage("regather")
async def regather(results: Joined[Piece], context: Context) -> Done:
    """The join of a nested fork: a branch of the outer one."""
    under = [piece async for piece in results]
    return Done(Piece(n=int(context.trace_id.rpartition("/")[2]), by=context.trace_id, under=under))


@stage("gather", emits="done")
async def gather(results: Joined[Piece], _: Context) -> Emit:
    """The join."""
    found = Sum()
    pieces, failed, missing = [], [], []
    async for branch in results.branches():
        if branch.result is not None:
            pieces.append(branch.result)
        else:
            (missing if branch.missing else failed).append(branch.id)
    return Emit(
        "done",
        found.model_copy(
            update={"pieces": tuple(pieces), "failed": tuple(failed), "missing": tuple(missing)}
        ),
    )


flow = Flow("forking", (split, part, regather, gather), sinks=("done",))
