"""A later release of `tests.support.refunds`, whose code does not fit runs that are under way."""

from __future__ import annotations

from datetime import timedelta

from streams import Emit, Flow, Run, orchestrator
from tests.support.refunds import Order, Refund, Score, ask, book, restock, score, undo


@orchestrator("refund", emits="done", calls=("restock", "book", "undo"))
async def refund(order: Order, run: Run) -> Emit:
    """Sleeps where the release before it waits for a signal."""
    await run.call(score, order, returns=Score)
    try:
        await run.sleep(timedelta(hours=1))
    except Exception:
        return Emit("done", Refund(n=order.n, path=("hidden",)))
    return Emit("done", Refund(n=order.n, path=("changed",)))


flow = Flow("refunds", (refund, score, restock, book, undo, ask), sinks=("done",))
