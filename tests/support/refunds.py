"""An orchestration for tests: a refund with a branch, a parallel pair, a timer, a signal and a
compensation; and a stage that waits for an approval.

`refund` → calls `score`, `restock`, `book`, `undo` → `done`; each call does an effect.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from streams import (
    CallFailed,
    Context,
    Done,
    Emit,
    Flow,
    Reject,
    Run,
    RunCancelled,
    TimedOut,
    Wait,
    orchestrator,
    stage,
)
from tests.support import target
from tests.support.flows import mark


class Order(BaseModel):
    n: int
    amount: int = 10
    #: Waits so long before it books.
    nap_s: float = 0.0
    #: `book` fails: what was restocked is undone.
    bad_book: bool = False
    #: `book` waits until the test opens this gate.
    gate: str = ""
    #: How long an approval may take.
    patience_s: float = 600.0


class Score(BaseModel):
    risk: float


class Entry(BaseModel):
    n: int
    by: str


class Refund(BaseModel):
    n: int
    path: tuple[str, ...] = ()
    by: str = ""


@stage("score")
async def score(order: Order, job: Context) -> Done:
    """Risk."""
    await job.effect("score", mark, order.n, "", idempotent=True)
    return Done(Score(risk=order.amount / 100))


@stage("restock")
async def restock(order: Order, job: Context) -> Done:
    """Takes the goods back."""
    await job.effect("restock", mark, order.n, "", idempotent=True)
    return Done(Entry(n=order.n, by=job.trace_id))


@stage("book")
async def book(order: Order, job: Context) -> Done | Reject:
    """Books the money."""
    if order.bad_book:
        return Reject("the books are closed")
    if order.gate:
        await target.pass_gate(order.gate)
    await job.effect("book", mark, order.n, "", idempotent=True)
    return Done(Entry(n=order.n, by=job.trace_id))


@stage("undo")
async def undo(order: Order, job: Context) -> Done:
    """Compensates `restock`."""
    await job.effect("undo", mark, order.n, "", idempotent=True)
    return Done(Entry(n=order.n, by=job.trace_id))


@orchestrator("refund", emits="done")
async def refund(order: Order, run: Run) -> Emit:
    """A refund: approved if risky, restocked and booked at once, undone if that fails."""
    path: list[str] = []
    by = ""
    risk = await run.call(score, order, returns=Score)
    if risk.risk > 0.8:
        path.append("risky")
        try:
            approval = await run.signal("approval", timeout=timedelta(seconds=order.patience_s))
            by = approval.by
        except TimedOut:
            return Emit("done", Refund(n=order.n, path=(*path, "refused")))
    if order.nap_s:
        await run.sleep(timedelta(seconds=order.nap_s))
        path.append("slept")
    try:
        stock, entry = await run.gather(
            run.call(restock, order, returns=Entry), run.call(book, order, returns=Entry)
        )
        path += [stock.by.rpartition("/")[2], entry.by.rpartition("/")[2]]
    except (CallFailed, RunCancelled):
        await run.call(undo, order)
        path.append("undone")
        if run.cancelled:
            raise
    return Emit("done", Refund(n=order.n, path=tuple(path), by=by))


@stage("ask", emits="done", waits="approval")
async def ask(order: Order, job: Context) -> Wait | Emit:
    """Waits for an approval."""
    await job.effect("asked", mark, order.n, "", idempotent=True)
    if job.signal is None:
        return Wait("approval", timeout=timedelta(seconds=order.patience_s))
    said = "timed out" if job.signal.timed_out else str(job.signal.value)
    return Emit("done", Refund(n=order.n, path=("asked", said), by=job.signal.by))


flow = Flow("refunds", (refund, score, restock, book, undo, ask), sinks=("done",))
