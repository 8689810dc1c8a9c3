"""Goal: a cancelled job's delivery ends as cancelled, once, whatever it was at in the stage; a
paused stage starts nothing, and forgets nothing.

Method: the real loop and record writer; orders are put into what a worker has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas import headers as h
from streams import Backoff, Context, Done, Fork, Joined, Stage, stage
from streams.control import Kind, Order, Standing, stage_key
from tests.unit.runtime.fakes import FakeMessage
from tests.unit.runtime.test_stage_loop import JOB, Bench, Task

AT = datetime(2026, 3, 1, tzinfo=UTC)
IN_PLACE = Backoff(attempts=9, first=timedelta(hours=1), in_place=timedelta(days=1))


class Desk:
    """A bench and the orders for it."""

    def __init__(self, *stages: Stage[Any, Any]) -> None:
        self.standing = Standing()
        self.bench = Bench(*stages, control=self.standing)

    def order(self, kind: Kind, target: str) -> None:
        order = Order(kind, target, "eve", AT, "why not")
        assert self.standing.apply(order.key, order.value) is kind
        self.bench.loop.on_order()

    def cancel(self, job: int) -> None:
        self.order(Kind.CANCEL, JOB.format(job + 1))

    def resume(self) -> None:
        self.standing.apply(stage_key("mail.work"), None)
        self.bench.loop.on_order()

    async def statuses(self, count: int) -> dict[str, str]:
        """By job, once so many are finished."""
        found = await self.bench.finished(count)
        assert len(found) == count
        return {state["traceId"]: state["status"] for state in found}


@pytest.fixture
async def desks() -> AsyncIterator[Any]:
    made: list[Desk] = []

    def make(*stages: Stage[Any, Any]) -> Desk:
        made.append(Desk(*stages))
        return made[-1]

    yield make
    for each in made:
        await each.bench.loop.stop(0)


def sync_stage(seen: list[int]) -> Stage[Any, Any]:
    @stage("work", emits="out")
    def work(task: Task, _: Context) -> Task:
        seen.append(task.n)
        return task

    return work


def async_stage(seen: list[int]) -> Stage[Any, Any]:
    @stage("work", emits="out")
    async def work(task: Task, _: Context) -> Task:
        seen.append(task.n)
        return task

    return work


@pytest.mark.parametrize("make", [sync_stage, async_stage])
async def test_a_cancelled_job_gets_its_result_in_place_of_a_run(desks: Any, make: Any) -> None:
    seen: list[int] = []
    desk = desks(make(seen))
    b = desk.bench
    desk.cancel(1)
    await b.take(*(b.message(n, n) for n in range(3)))
    assert await desk.statuses(3) == {
        JOB.format(1): "done",
        JOB.format(2): "cancelled",
        JOB.format(3): "done",
    }
    assert sorted(seen) == [0, 2]
    [records] = [b.writer.records(d) for d in b.commits.added if d.job_id == JOB.format(2)]
    assert len(records) == 1, "no dead letter"
    [error] = [state["error"] for state in b.commits.states() if "error" in state]
    assert error == {
        "kind": "cancelled",
        "message": "Cancelled by eve at 2026-03-01 00:00:00Z: why not",
    }


async def test_waits_end_runs_get_their_grace_and_what_is_queued_never_begins(desks: Any) -> None:
    began: list[int] = []

    @stage("work", emits="out", concurrency=3, retry=IN_PLACE)
    async def work(task: Task, job: Context) -> Task:
        began.append(task.n)
        if task.n == 0:
            raise ValueError("not yet")
        while task.n == 1 and not job.cancelled:
            await asyncio.sleep(0.001)
        if task.n == 1:
            return task
        await asyncio.sleep(3_600)
        return task

    desk = desks(work)
    b = desk.bench
    await b.take(b.message(0, 0))
    await b.take(*(b.message(n, n) for n in range(1, 6)))
    while len(began) < 4:
        await asyncio.sleep(0.001)
    # 0 waits in place, 1 to 3 hold all slots, 4 and 5 are queued.
    for n in range(5):
        desk.cancel(n)
    found = await desk.statuses(5)
    assert found == {
        JOB.format(1): "cancelled",
        JOB.format(2): "done",
        JOB.format(3): "cancelled",
        JOB.format(4): "cancelled",
        JOB.format(5): "cancelled",
    }
    while 5 not in began:
        await asyncio.sleep(0.001)
    assert sorted(began) == [0, 1, 2, 3, 5], "the slots are free again"


async def test_a_run_that_raises_for_its_cancel_is_no_failure(desks: Any) -> None:
    @stage("work", emits="out")
    async def work(_: Task, job: Context) -> Task:
        while not job.cancelled:
            await asyncio.sleep(0.001)
        raise RuntimeError("cancelled, so it gives up")

    desk = desks(work)
    await desk.bench.take(desk.bench.message(0, 0))
    desk.cancel(0)
    assert set((await desk.statuses(1)).values()) == {"cancelled"}


async def test_a_cancelled_job_forks_no_more(desks: Any) -> None:
    @stage("work", emits="part", joins="merge")
    async def work(task: Task, job: Context) -> Fork:
        while task.n and not job.cancelled:
            await asyncio.sleep(0.001)
        return Fork([task], join="merge")

    @stage("merge")
    async def merge(_: Joined[Task], __: Context) -> Done:
        return Done()

    @stage("part")
    def part(_: Task, __: Context) -> Done:
        return Done()

    desk = desks(work, merge, part)
    await desk.bench.take(desk.bench.message(0, 0), desk.bench.message(1, 1))
    desk.cancel(1)
    assert sorted((await desk.statuses(2)).values()) == ["cancelled", "waiting"]


async def test_a_wake_is_believed_before_the_order_has_come(desks: Any) -> None:
    seen: list[int] = []
    desk = desks(async_stage(seen))
    b = desk.bench
    order = Order(Kind.CANCEL, JOB.format(1), "eve", AT)
    told = [(h.CANCEL, JOB.format(1).encode()), (h.HOP, b"3;1700000000000000;mail")]
    await b.take(FakeMessage(order.value, JOB.format(1).encode(), told, 1))
    [state] = await b.finished(1)
    assert (state["status"], state["seq"], state["attempts"]) == ("cancelled", 4, 0)
    assert seen == []


@pytest.mark.parametrize("make", [sync_stage, async_stage])
async def test_a_paused_stage_starts_nothing_until_it_goes_on(desks: Any, make: Any) -> None:
    seen: list[int] = []
    desk = desks(make(seen))
    b = desk.bench
    desk.order(Kind.PAUSE, "mail.work")
    await b.take(*(b.message(n, n) for n in range(3)))
    await asyncio.sleep(0.01)
    assert seen == []
    assert b.loop.paused == "paused by eve since 2026-03-01 00:00:00Z: why not"
    desk.cancel(1)
    assert await desk.statuses(1) == {JOB.format(2): "cancelled"}
    desk.resume()
    assert (await desk.statuses(3))[JOB.format(3)] == "done"
    assert sorted(seen) == [0, 2]
    assert b.loop.paused is None


async def test_a_stop_during_a_persons_pause_gives_everything_back(desks: Any) -> None:
    desk = desks(async_stage([]))
    desk.order(Kind.PAUSE, "mail.work")
    await desk.bench.take(*(desk.bench.message(n, n) for n in range(3)))
    assert desk.bench.budget.records == 3
    await desk.bench.loop.stop(1)
    assert (desk.bench.budget.records, desk.bench.commits.added) == (0, [])


class Journal:
    """Writes down what it starts."""

    on, paused = True, None

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._tasks: list[Any] = []

    async def take(self, batch: Any, _size: int, start: Any, _bury: Any) -> None:
        for d in batch:
            self.begun.append(d.job_id)
            await asyncio.sleep(0)
            start(d)

    def spawn(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work()))

    def stop(self) -> None: ...


async def test_what_a_pause_keeps_is_not_written_down_as_started(desks: Any) -> None:
    seen: list[int] = []
    desk, journal = desks(async_stage(seen)), Journal()
    b = desk.bench
    b.loop._journal = journal
    desk.order(Kind.PAUSE, "mail.work")
    await b.take(b.message(0, 0), b.message(1, 1))
    desk.cancel(0)
    await b.take(b.message(2, 2), b.message(3, 3))
    desk.cancel(3)
    assert await desk.statuses(2) == {JOB.format(1): "cancelled", JOB.format(4): "cancelled"}
    assert journal.begun == []
    desk.resume()
    await b.take(b.message(4, 4))
    await b.finished(5)
    assert seen == [1, 2, 4], "in their order"
    assert journal.begun == [JOB.format(n) for n in (2, 3, 5)]
