"""A flow whose orchestration fails, or cannot go on, until it is mended: `lead` → calls `part` →
`done`."""

from __future__ import annotations

import os
from typing import Final

from pydantic import BaseModel

from streams import Context, Done, Emit, Flow, Run, orchestrator, stage

#: Environment of a worker: it is mended.
MENDED: Final = "MOODY_MENDED"


class Task(BaseModel):
    n: int
    #: `fails` after its first call, `early` when the first of two calls has come, `lost` calls
    #: what it does not declare.
    mood: str = ""


class Piece(BaseModel):
    n: int


@stage("part")
def part(task: Task, _: Context) -> Done:
    """Does its part."""
    return Done(Piece(n=task.n))


@orchestrator("lead", emits="done", calls="part")
async def lead(task: Task, run: Run) -> Emit:
    """Calls, and has its moods."""
    mended = MENDED in os.environ
    if task.mood == "early":
        one, two = run.call(part, task), run.call(part, task)
        await run.first_of(one, two)
        if not mended:
            raise ValueError("one is enough to be cross")
        await run.gather(one, two)
    await run.call(part, task, returns=Piece)
    if task.mood == "fails" and not mended:
        raise ValueError("not today")
    if task.mood == "lost" and not mended:
        await run.call("_".join(("nobody", "knows")), task)
    last = await run.call(part, task, returns=Piece)
    return Emit("done", last)


flow = Flow("moody", (lead, part), sinks=("done",))
