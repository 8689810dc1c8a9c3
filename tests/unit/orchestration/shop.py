"""The refund of decision 16 for tests that need no services, and stages that it calls."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from streams import (
    CallFailed,
    Context,
    Done,
    Emit,
    Reject,
    Run,
    RunCancelled,
    TimedOut,
    Wait,
    orchestrator,
    stage,
)


class Order(BaseModel):
    n: int = 1
    amount: int = 10


class Score(BaseModel):
    risk: float


class Entry(BaseModel):
    by: str


class Refund(BaseModel):
    path: tuple[str, ...] = ()
    by: str = ""


@stage("score")
def score(order: Order, _: Context) -> Done:
    """Risk."""
    return Done(Score(risk=order.amount / 100))


@stage("restock")
async def restock(_: Order, job: Context) -> Done:
    """Takes the goods back."""
    return Done(Entry(by=job.trace_id))


@stage("book")
async def book(order: Order, job: Context) -> Done | Reject:
    """Books the money."""
    return Reject("the books are closed") if order.amount < 0 else Done(Entry(by=job.trace_id))


@stage("undo")
def undo(_: Order, job: Context) -> Done:
    """Compensates `restock`."""
    return Done(Entry(by=job.trace_id))


@orchestrator("refund", emits="done")
async def refund(order: Order, run: Run) -> Emit | Reject:
    """Approved if risky, restocked and booked at once, undone if that fails."""
    by = ""
    risk = await run.call(score, order, returns=Score)
    if risk.risk > 0.8:
        try:
            by = (await run.signal("approval", timeout=timedelta(days=3))).by
        except TimedOut:
            return Reject("nobody approved it")
    await run.sleep(timedelta(hours=1))
    try:
        await run.gather(run.call(restock, order), run.call(book, order))
    except (CallFailed, RunCancelled):
        await run.call(undo, order)
        if run.cancelled:
            raise
        return Emit("done", Refund(path=("undone",), by=by))
    return Emit("done", Refund(path=("booked",), by=by))


@stage("ask", emits="done", waits="approval")
def ask(order: Order, job: Context) -> Wait | Emit:
    """Waits for an approval."""
    if job.signal is None:
        return Wait("approval", timeout=timedelta(days=3))
    return Emit("done", Refund(by="nobody" if job.signal.timed_out else job.signal.by))
