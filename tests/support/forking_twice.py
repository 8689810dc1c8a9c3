"""A flow whose jobs fork twice, and whose branches pass two stages: `split` → `part`s → `polish` →
`again` → as many `part`s more → … → `gather` → `done`."""

from __future__ import annotations

from streams import Context, Done, Emit, Flow, Fork, Joined, stage
from tests.support.forking import Part, Piece, Sum, Whole


@stage("split", emits="part", joins="again")
def split(job: Whole, _: Context) -> Fork:
    """Forks."""
    return Fork([Part(n=n) for n in range(job.parts)], join="again")


@stage("part", emits="polish")
def part(job: Part, _: Context) -> Part:
    """The first half of a branch."""
    return job


@stage("polish")
def polish(job: Part, context: Context) -> Done:
    """The second half."""
    return Done(Piece(n=job.n, by=context.trace_id))


@stage("again", emits="part", joins="gather")
async def again(results: Joined[Piece], _: Context) -> Fork:
    """Joins, and forks into one branch more."""
    return Fork([Part(n=n) for n in range(results.done + 1)], join="gather")


@stage("gather", emits="done")
async def gather(results: Joined[Piece], _: Context) -> Emit:
    """The second join."""
    return Emit("done", Sum(pieces=tuple([piece async for piece in results])))


flow = Flow("twice", (split, part, polish, again, gather), sinks=("done",))
