"""A flow of runs that do nothing but wait for a signal."""

from __future__ import annotations

from pydantic import BaseModel

from streams import Emit, Flow, Run, orchestrator


class Hold(BaseModel):
    n: int
    by: str = ""


@orchestrator("hold", emits="done")
async def hold(what: Hold, run: Run) -> Emit:
    """Waits for as long as it takes."""
    signal = await run.signal("go")
    return Emit("done", Hold(n=what.n, by=signal.by))


flow = Flow("holding", (hold,), sinks=("done",))
