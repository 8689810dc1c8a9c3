"""Goal: waits hold nobody up, forget no attempt, and a bad world pauses the stage, not one job.

Method: the real loop, pause and record writer; commits are a recorded list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import orjson
import pytest

from schemas import headers as h
from streams import Backoff, BadWorld, Context, Retry, Stage, stage
from streams.runtime.delivery import Delivery
from tests.unit.runtime.fakes import FakeMessage
from tests.unit.runtime.test_stage_loop import SHORT, Bench, Task

HOUR = timedelta(hours=1)
IN_PLACE = Backoff(attempts=9, first=HOUR, limit=HOUR, in_place=timedelta(days=1))


@pytest.fixture
async def bench() -> AsyncIterator[Callable[[Stage[Any, Any]], Bench]]:
    made: list[Bench] = []

    def make(each: Stage[Any, Any]) -> Bench:
        made.append(Bench(each))
        return made[-1]

    yield make
    for each in made:
        await each.loop.stop(0)


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not fact():
            await asyncio.sleep(0.001)


def timer_of(b: Bench, d: Delivery) -> tuple[int, dict[str, bytes]]:
    """Due time (ms) and headers of the timer record that a delivery leads to."""
    topic, _, _, headers = b.writer.records(d)[1]
    assert topic == "timers"
    return int(dict(headers)[h.DUE]), dict(headers)


def returned(b: Bench, job: int, n: int, attempts: int) -> FakeMessage:
    message = b.message(job, n)
    told = [(h.TIMER, b"retry"), (h.ATTEMPT, b"%d" % attempts)]
    message._headers = [*told, *(message.headers() or [])]
    return message


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_long_wait_is_a_step_that_leaves_nothing_behind(bench: Any, kind: str) -> None:
    def work(task: Task, job: Context) -> Task | Retry:
        return Retry(HOUR, "busy") if task.n == 0 else task

    async def work_async(task: Task, job: Context) -> Task | Retry:
        return work(task, job)

    b = bench(stage("classify", emits="out")(work if kind == "sync" else work_async))
    await b.take(b.message(0, 0), b.message(0, 1))
    waiting, done = await b.finished(2)
    assert (waiting["status"], waiting["attempts"], waiting["seq"]) == ("waiting", 1, 2)
    assert waiting["error"] == {
        "kind": "retry",
        "message": "Attempt 1 of 5 of stage classify: RetryAsked: busy",
    }
    # The job's other record does not wait for the timer.
    assert (done["status"], done["data"]) == ("done", {"n": 1})
    due_ms, headers = timer_of(b, b.commits.added[0])
    wakes = datetime.fromisoformat(waiting["wakesAt"]).timestamp()
    assert 0 <= due_ms / 1000 - wakes < 0.002
    updated = datetime.fromisoformat(waiting["updatedAt"]).timestamp()
    assert wakes - updated == pytest.approx(3600, abs=0.01)
    assert (headers[h.SEQ], headers[h.ATTEMPT]) == (b"2", b"1")
    assert b.loop._lanes.active == set()


async def test_attempts_go_on_where_the_returned_record_says(bench: Any) -> None:
    seen: list[int] = []

    @stage("classify", emits="out", retry=Backoff(attempts=4, first=timedelta(milliseconds=1)))
    async def classify(task: Task, job: Context) -> Task:
        seen.append(job.attempt)
        raise ValueError("not ever")

    b = bench(classify)
    await b.take(returned(b, 0, 0, attempts=2))
    [state] = await b.finished(1)
    assert seen == [3, 4]
    assert (state["status"], state["attempts"]) == ("failed", 4)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_stop_turns_waits_in_place_into_timers_with_their_attempts(
    bench: Any, kind: str
) -> None:
    def work(task: Task, job: Context) -> Task:
        raise ValueError("not today")

    async def work_async(task: Task, job: Context) -> Task:
        raise ValueError("not today")

    declared = stage("classify", emits="out", retry=IN_PLACE)
    b = bench(declared(work if kind == "sync" else work_async))
    await b.take(b.message(0, 0), b.message(0, 1))
    await until(lambda: any(d.timer is not None for d in b.loop._lanes.active))
    assert b.commits.added == []
    async with asyncio.timeout(20):
        await b.loop.stop(3600)
    [d] = b.commits.added
    [state] = b.commits.states()
    assert (state["status"], state["attempts"]) == ("waiting", 1)
    due_ms, headers = timer_of(b, d)
    assert headers[h.ATTEMPT] == b"1"
    left_s = due_ms / 1000 - datetime.fromisoformat(state["updatedAt"]).timestamp()
    assert 1_700 < left_s <= 3_601, "half of the first wait, to all of it"
    assert b.budget.records == 1, "the one behind it has spent nothing and is given back"


async def test_a_stop_that_cuts_a_run_short_keeps_the_earlier_attempts_only(bench: Any) -> None:
    @stage("classify", emits="out", retry=Backoff(attempts=9, first=timedelta(milliseconds=1)))
    async def classify(task: Task, job: Context) -> Task:
        if job.attempt < 3 and task.n == 0:
            raise ValueError("not yet")
        await asyncio.Event().wait()
        return task

    b = bench(classify)
    await b.take(b.message(0, 0), b.message(1, 1), returned(b, 2, 2, attempts=2))
    await until(lambda: any(d.attempt - d.attempts_told == 3 for d in b.loop._lanes.active))
    async with asyncio.timeout(20):
        await b.loop.stop(0.01)
    [d] = b.commits.added
    headers = timer_of(b, d)[1]
    assert (d.job_id[-1], headers[h.ATTEMPT]) == ("1", b"2")
    assert b.budget.records == 1, "the others come again as they are"


async def test_a_partition_that_is_gone_gets_no_timer_from_us(bench: Any) -> None:
    @stage("classify", emits="out", retry=IN_PLACE)
    async def classify(task: Task, job: Context) -> Task:
        raise ValueError("not today")

    b = bench(classify)
    await b.take(b.message(0, 0))
    await until(lambda: any(d.timer is not None for d in b.loop._lanes.active))
    b.tracker.live = False
    b.loop.end([b.tracker])
    assert b.commits.added == []
    assert b.budget.records == 0


class World:
    """A target that is away until it is told otherwise; counts who called."""

    def __init__(self) -> None:
        self.away = True
        self.calls: list[int] = []
        self.running = self.most = 0

    async def call(self, n: int) -> None:
        self.calls.append(n)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.away:
            raise BadWorld("the target is away")


def calling(world: World, kind: str) -> Stage[Any, Any]:
    async def work(task: Task, job: Context) -> Task:
        await world.call(task.n)
        return task

    def work_sync(task: Task, job: Context) -> Task:
        world.calls.append(task.n)
        if world.away:
            raise BadWorld("the target is away")
        return task

    return stage("classify", emits="out", concurrency=4)(work if kind == "async" else work_sync)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_bad_world_pauses_the_whole_stage_and_one_probe_reopens_it(
    bench: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.runtime.pause.BETWEEN_PROBES", SHORT)
    world = World()
    b = bench(calling(world, kind))
    await b.take(*(b.message(n, n) for n in range(600)))
    began = len(world.calls)
    assert began < 60, "what ran when the world went bad, then a probe now and then"
    await until(lambda: len(world.calls) >= began + 20)
    # Each probe is another record: were it the record, it would not be probed for ever.
    probes = world.calls[began : began + 20]
    assert len(set(probes)) == 20
    assert b.loop.paused == "the target is away"
    world.most = 0
    await b.take(b.message(1_000, 1_000))
    await until(lambda: len(world.calls) >= began + 30)
    assert world.most <= 1, "probes run alone"
    world.away = False
    states = await b.finished(601)
    assert {s["status"] for s in states} == {"done"}
    assert {s["attempts"] for s in states} == {1}, "no attempt was spent"
    assert b.loop.paused is None


async def test_what_a_pause_has_piled_up_leaves_the_event_loop_its_turns(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.runtime.pause.BETWEEN_PROBES", SHORT)
    world = World()
    b = bench(calling(world, "sync"))
    await b.take(*(b.message(n, n) for n in range(900)))
    world.away = False
    seen = [len(world.calls)]
    while len(b.commits.added) < 900:
        # As retries do that come back in the same turn.
        b.loop._start_more()
        seen.append(len(world.calls))
        await asyncio.sleep(0)
        seen.append(len(world.calls))
    assert max(after - before for before, after in pairwise(seen)) <= 260


async def test_retry_after_is_the_length_of_the_pause(bench: Any) -> None:
    times: list[float] = []

    @stage("classify", emits="out")
    async def classify(task: Task, job: Context) -> Task:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise BadWorld("busy", after_s=0.3)
        return task

    b = bench(classify)
    await b.take(b.message(0, 0))
    await until(lambda: times)
    await b.take(b.message(1, 1))
    states = await b.finished(2)
    assert times[1] - times[0] > 0.298
    assert [s["attempts"] for s in states] == [1, 1]


async def test_a_record_that_only_claims_a_bad_world_comes_ever_more_rarely(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.runtime.pause.BETWEEN_PROBES", SHORT)
    liar = 0

    @stage("classify", emits="out")
    async def classify(task: Task, job: Context) -> Task:
        nonlocal liar
        if task.n == 0:
            liar += 1
            raise BadWorld("it is the others' fault")
        return task

    b = bench(classify)
    for n in range(300):
        await b.take(b.message(n, n))
        await asyncio.sleep(0)
    assert len(await b.finished(299)) == 299
    assert liar <= 3, "after it was seen to be alone with its trouble it waits by itself"
    assert b.loop.paused is None


async def test_a_probe_whose_partition_goes_is_replaced_by_another(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.runtime.pause.BETWEEN_PROBES", SHORT)
    hold = asyncio.Event()
    failed = False

    @stage("classify", emits="out", concurrency=1)
    async def classify(task: Task, job: Context) -> Task:
        nonlocal failed
        if not failed:
            failed = True
            raise BadWorld("away")
        if task.n == 1:
            await hold.wait()
        return task

    b = bench(classify)
    await b.take(b.message(0, 0), b.message(1, 1))
    await until(lambda: b.loop._pause.probe is not None and b.loop._pause.probe.task is not None)
    gone = b.loop._pause.probe
    assert gone.message.value() == b'{"n": 1}'
    b.loop._cancel([gone])
    await b.finished(1)
    assert b.loop.paused is None


async def test_a_run_that_is_cancelled_before_its_first_step_is_given_back(bench: Any) -> None:
    @stage("classify", emits="out", concurrency=3)
    async def classify(task: Task, job: Context) -> Task:
        raise AssertionError("must not run")

    b = bench(classify)
    await b.take(*(b.message(n, n) for n in range(10)))
    # No turn of the event loop lies between: the three tasks exist and have not begun.
    assert b.loop._running == 3
    b.tracker.live = False
    b.loop.end([b.tracker])
    await until(lambda: not b.loop._lanes.active)
    assert (b.loop._running, b.budget.records, b.commits.added) == (0, 0, [])


async def test_a_stop_during_a_pause_gives_everything_back(bench: Any) -> None:
    world = World()
    b = bench(calling(world, "async"))
    await b.take(*(b.message(n, n) for n in range(50)))
    async with asyncio.timeout(20):
        await b.loop.stop(3600)
    assert b.commits.added == []
    assert b.budget.records == 0


async def test_a_stop_during_a_pause_keeps_attempts_that_were_spent_before_it(
    bench: Any,
) -> None:
    @stage("classify", emits="out", retry=Backoff(attempts=9, first=timedelta(milliseconds=1)))
    async def classify(task: Task, job: Context) -> Task:
        if job.attempt < 3:
            raise ValueError("not yet")
        raise BadWorld("away", after_s=1_000)

    b = bench(classify)
    await b.take(b.message(0, 0))
    await until(lambda: b.loop.paused)
    async with asyncio.timeout(20):
        await b.loop.stop(3600)
    [d] = b.commits.added
    assert timer_of(b, d)[1][h.ATTEMPT] == b"2"
    assert orjson.loads(b.writer.records(d)[0][2])["attempts"] == 2
