"""A flow that forks, joins, forks again with other numbers and goes on after the second join:
`split` → `part`s → `gather` → more `part`s → `total` → `report` → sink `done`.

Each part does an effect, and so does `report`; until MENDED is set a part may fail, and a bill of
fewer than three items does.
"""

from __future__ import annotations

import os

from pydantic import BaseModel

from streams import Context, Done, Emit, Flow, Fork, Joined, Reject, stage
from streams.outcome import OnMissing
from tests.support.flows import mark

MENDED = "TESTS_TWO_FORKS_MENDED"


class Order(BaseModel):
    n: int
    parts: int
    bad: tuple[int, ...] = ()
    on_missing: OnMissing = "wait"


class Item(BaseModel):
    n: int
    label: str
    bad: bool = False


class Priced(BaseModel):
    n: int
    label: str


class Bill(BaseModel):
    items: tuple[Priced, ...]


@stage("split", emits="part", joins="gather")
def split(order: Order, _: Context) -> Fork:
    """Forks."""
    items = [Item(n=n, label="first", bad=n in order.bad) for n in range(order.parts)]
    return Fork(items, join="gather", on_missing=order.on_missing)


@stage("part")
async def part(item: Item, context: Context) -> Done | Reject:
    """One branch of either fork."""
    if item.bad and not os.environ.get(MENDED):
        return Reject(f"item {item.n} is bad")
    done = await context.effect("mark", mark, item.n, "", idempotent=True)
    return Done(Priced(n=done.n, label=item.label))


@stage("gather", emits="part", joins="total")
async def gather(results: Joined[Priced], _: Context) -> Fork:
    """The first join, which forks again: one child for each result, and one more."""
    items = [Item(n=priced.n, label="second") async for priced in results]
    return Fork([*items, Item(n=len(items), label="second")], join="total")


@stage("total", emits="report")
async def total(results: Joined[Priced], _: Context) -> Emit | Reject:
    """The second join."""
    if results.done < 3 and not os.environ.get(MENDED):
        return Reject("a bill of so few items")
    return Emit("report", Bill(items=tuple([priced async for priced in results])))


@stage("report", emits="done")
async def report(bill: Bill, context: Context) -> Emit:
    """Past the joins."""
    await context.effect("report", mark, len(bill.items), "", idempotent=True)
    return Emit("done", bill)


flow = Flow("twice", (split, part, gather, total, report), sinks=("done",))
