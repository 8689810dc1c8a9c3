"""Goal: what is limited starts at its moment or not at all, holds up nothing else, and is given
back or sent away in order.

Method: the real stage loop and gate; rows in memory (`book`), commits are recorded lists.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from schemas import headers as h
from streams import Backoff, BadWorld, Context, Limit, Stage, stage
from streams.limits.gate import Gate
from streams.runtime.telemetry import limits
from tests.support.limiting import most_within
from tests.unit.limits.book import Book
from tests.unit.runtime.fakes import FakeMessage, make_tracker
from tests.unit.runtime.test_stage_loop import JOB, Bench

QUICK = Backoff(attempts=3, first=timedelta(milliseconds=1))
SECOND = timedelta(seconds=1)


class Task(BaseModel):
    n: int
    key: str | None = "a"


class LimitedBench(Bench):
    """A stage loop with its limits, whose rows are `book`."""

    def __init__(self, each: Stage[Any, Any], book: Book, **more: Any) -> None:
        super().__init__(each)
        self.failures: list[BaseException] = []
        self.gate = Gate(
            each.name,
            each.limits,
            book.holder(),
            self.loop,
            **{"most": 500, "fail": self.failures.append, **more},
        )
        self.loop.limits = self.gate
        self.gate.start()
        self.tracker = make_tracker()

    def task(self, n: int, key: str | None = "a", job: int | None = None) -> FakeMessage:
        value = Task(n=n, key=key).model_dump_json().encode()
        return self.message(n if job is None else job, n, value)

    def returned(self, n: int) -> FakeMessage:
        """What a timer brought back."""
        message = self.task(n)
        headers = [
            (h.SEQ, b"1"),
            (h.BORN, b"1700000000000000"),
            (h.FLOW, b"mail"),
            (h.TIMER, b"retry"),
            (h.ATTEMPT, b"0"),
        ]
        return FakeMessage(message.value(), message.key(), headers, message.offset())


class Runs:
    """When handlers of a test started, by key (microseconds), and in which order."""

    def __init__(self) -> None:
        self.starts: dict[str | None, list[int]] = {}
        self.order: list[int] = []
        self.running = self.most = 0

    def note(self, task: Task) -> None:
        self.starts.setdefault(task.key, []).append(time.monotonic_ns() // 1_000)
        self.order.append(task.n)

    def count(self) -> int:
        return len(self.order)


def made(
    runs: Runs, limit: Limit, *, sync: bool = False, wait_s: float = 0.0, **more: Any
) -> Stage[Any, Any]:
    declared = stage("classify", emits="out", limits=limit, **more)
    if sync:

        def inline(task: Task, _: Context) -> Task:
            runs.note(task)
            return task

        return declared(inline)

    async def classify(task: Task, _: Context) -> Task:
        runs.note(task)
        runs.running += 1
        runs.most = max(runs.most, runs.running)
        await asyncio.sleep(wait_s)
        runs.running -= 1
        return task

    return declared(classify)


Make = Callable[..., LimitedBench]


@pytest.fixture
async def bench() -> AsyncIterator[Make]:
    benches: list[LimitedBench] = []

    def make(each: Stage[Any, Any], book: Book | None = None, **more: Any) -> LimitedBench:
        benches.append(LimitedBench(each, book or Book(each.limits), **more))
        return benches[-1]

    yield make
    for each in benches:
        await each.loop.stop(0)
        await each.gate.close()
        assert each.failures == []
        assert each.gate.waiting == 0
        done = each.commits.added
        each.budget.release(done)
        assert each.budget.records == 0, "all that was taken was committed or given back"


def keyed(rate: int | None = None, **more: Any) -> Limit:
    return Limit("model", rate=rate, key=lambda task: task.key, **more)


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not fact():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_starts_keep_to_the_rate_of_their_key_and_to_no_other(
    bench: Make, sync: bool
) -> None:
    runs = Runs()
    b = bench(made(runs, keyed(100), sync=sync, concurrency=8))
    began = time.monotonic()
    await b.take(*(b.task(n) for n in range(120)))
    await b.take(
        *(b.task(n, "b") for n in range(200, 220)), *(b.task(n, None) for n in range(300, 400))
    )
    await until(lambda: len(runs.starts.get(None, ())) == 100)
    assert len(runs.starts.get("a", ())) < 20, "what has no key starts at once"
    await until(lambda: len(runs.starts.get("b", ())) == 20)
    assert len(runs.starts["a"]) < 60, "a key does not wait for another one"
    await b.finished(240)
    assert most_within(runs.starts["a"], SECOND) <= 100
    # A missed moment costs ten milliseconds; a machine that stands still costs some.
    assert 1.2 < time.monotonic() - began < 3.0


async def test_who_waits_holds_no_place_among_the_handlers(bench: Make) -> None:
    runs = Runs()
    slow = keyed(4, per=timedelta(seconds=10))
    b = bench(made(runs, slow, concurrency=2, wait_s=0.001))
    await b.take(*(b.task(n) for n in range(5)))
    await b.take(*(b.task(n, f"key {n}") for n in range(10, 50)))
    await until(lambda: runs.count() >= 41)
    assert runs.most == 2
    assert len(runs.starts["a"]) <= 4


async def test_too_many_are_sent_away_without_an_attempt_and_who_comes_back_is_not(
    bench: Make,
) -> None:
    runs = Runs()
    b = bench(made(runs, keyed(2)))
    await b.take(*(b.task(n) for n in range(40)))
    states = [s for s in await b.finished(30) if s["status"] == "waiting"]
    assert len(states) == 30
    assert {s["attempts"] for s in states} == {0}
    assert states[0]["error"]["kind"] == "limited"
    assert states[-1]["error"]["message"] == (
        "Stage classify has not started it: it waits for the limit model (2 per second) of 'a'. "
        "Some 30 are before it."
    )
    wakes = [s["wakesAt"] for s in states]
    assert wakes == sorted(wakes)
    assert len(set(wakes)) == 30, "they come back one after the other"
    topic, key, *_ = b.records(0)[1]
    assert (topic, len(key)) == ("timers", 32)
    await b.take(*(b.returned(n) for n in range(50, 70)))
    await until(lambda: b.gate.waiting >= 28)
    told = {spec.name: value for spec, _, value in limits("mail.classify", b.gate)}
    assert told["handoff.limit.sent_away"] == 30
    assert told["handoff.limit.waiting"] == b.gate.waiting
    held = b.loop.held()
    assert held["limited"] == b.gate.waiting
    job, _, before, words = held["limits"][1]
    assert (len(job), before, words) == (32, 1, "limit model (2 per second) of 'a'")
    assert runs.count() <= 2


async def test_no_more_wait_in_memory_than_the_stage_may_hold(bench: Make) -> None:
    b = bench(made(Runs(), keyed(1)), most=10)
    await b.take(*(b.task(n, f"key {n % 30}") for n in range(60)))
    await until(lambda: b.gate.sent_away >= 20)
    assert b.gate.waiting <= 10


async def test_while_postgres_is_away_nothing_that_is_limited_starts_and_it_is_said(
    bench: Make, monkeypatch: Any
) -> None:
    monkeypatch.setattr("streams.limits.gate._PAUSE_S", 0.01)
    runs, limit = Runs(), keyed(1_000)
    book = Book([limit])
    book.away = True
    b = bench(made(runs, limit), book)
    await b.take(*(b.task(n) for n in range(5)), *(b.task(n, None) for n in range(10, 15)))
    await until(lambda: b.loop.paused)
    assert "until Postgres can be asked: Postgres at nowhere does not serve." in b.loop.paused
    await until(lambda: book.questions > 3)
    assert {key: len(times) for key, times in runs.starts.items()} == {None: 5}
    book.away = False
    await b.finished(10)
    assert b.loop.paused is None


async def test_retries_in_place_take_moments_too_and_jobs_keep_their_order(bench: Make) -> None:
    runs = Runs()

    @stage("classify", emits="out", limits=keyed(50), retry=QUICK)
    async def classify(task: Task, job: Context) -> Task:
        runs.note(task)
        if job.attempt < 3:
            raise ValueError("not yet")
        return task

    b = bench(classify)
    await b.take(*(b.task(n, job=n % 2) for n in range(10)))
    states = await b.finished(10)
    assert {s["attempts"] for s in states} == {3}
    assert most_within(runs.starts["a"], timedelta(milliseconds=50)) <= 6
    for job in range(2):
        assert [n for n in runs.order if n % 2 == job][::3] == list(range(job, 10, 2))


async def test_a_loop_that_is_late_misses_moments_and_never_bunches_starts(bench: Make) -> None:
    runs = Runs()
    b = bench(made(runs, keyed(50)))
    await b.take(*(b.task(n) for n in range(40)))
    while len(b.commits.added) < 40:
        await asyncio.sleep(0.06)
        time.sleep(0.12)  # noqa: ASYNC251 - as a sync handler of another stage does
    assert b.gate.missed > 0
    # Six moments are 110 ms apart, and a start is made 75 ms late at most.
    assert most_within(runs.starts["a"], timedelta(milliseconds=30)) <= 5
    assert most_within(runs.starts["a"], SECOND) <= 50


async def test_a_clock_that_is_set_withdraws_moments(bench: Make) -> None:
    runs, limit = Runs(), keyed(20)
    book = Book([limit])
    b = bench(made(runs, limit), book)
    await b.take(*(b.task(n) for n in range(25)))
    await until(lambda: runs.count() == 1)
    book.set_us = 3_600_000_000
    await b.take(b.task(30, "b"))
    await b.finished(26)
    assert most_within(runs.starts["a"], SECOND) <= 20


@pytest.mark.parametrize("how", ["stop", "partition gone"])
async def test_who_waits_is_given_back_when_it_cannot_run_here_any_more(
    bench: Make, how: str
) -> None:
    runs = Runs()
    b = bench(made(runs, keyed(2), wait_s=0.05))
    await b.take(*(b.task(n) for n in range(10)), *(b.task(n, job=3) for n in range(30, 35)))
    await until(lambda: runs.count() == 1)
    if how == "stop":
        await b.loop.stop(5)
        assert len(b.commits.added) == 1, "what ran has ended, the rest was given back"
    else:
        b.tracker.live = False
        b.loop.end([b.tracker])
        await until(lambda: b.gate.waiting == 0)
    await asyncio.sleep(0)
    assert runs.count() == 1
    assert b.loop.held()["limited"] == 0


async def test_a_record_without_a_usable_key_is_dead_lettered(bench: Make) -> None:
    limit = Limit("model", rate=5, key=lambda task: task.key["x"])
    b = bench(made(Runs(), limit))
    await b.take(b.task(0), b.task(1))
    states = await b.finished(2)
    assert {(s["status"], s["error"]["kind"], s["attempts"]) for s in states} == {
        ("failed", "bad_record", 0)
    }
    assert "its key function raised TypeError" in states[0]["error"]["message"]


async def test_a_paused_stage_probes_through_its_limits_and_opens(
    bench: Make, monkeypatch: Any
) -> None:
    short = Backoff(
        attempts=2**31, first=timedelta(milliseconds=1), limit=timedelta(milliseconds=1)
    )
    monkeypatch.setattr("streams.runtime.pause.BETWEEN_PROBES", short)
    runs = Runs()

    @stage("classify", emits="out", limits=keyed(100))
    async def classify(task: Task, job: Context) -> Task:
        runs.note(task)
        if runs.count() < 12:
            raise BadWorld("the target is away")
        return task

    b = bench(classify)
    await b.take(*(b.task(n) for n in range(30)))
    states = await b.finished(30)
    assert {s["attempts"] for s in states} == {1}
    assert most_within(runs.starts["a"], SECOND) <= 100


async def test_places_are_shared_by_stages_and_free_when_a_run_ends(bench: Make) -> None:
    runs, limit = Runs(), keyed(concurrency=3)
    book = Book([limit])
    benches = [bench(made(runs, limit, wait_s=0.01), book) for _ in range(2)]
    for b in benches:
        await b.take(*(b.task(n) for n in range(12)))
    for b in benches:
        await b.finished(12)
    assert runs.most == 3


class FakeJournal:
    """On from the beginning; its rows are a set."""

    on = True

    def __init__(self) -> None:
        self.open: set[Any] = set()
        self.made_way = 0

    def make_way(self, d: Any) -> None:
        self.made_way += d in self.open
        self.open.discard(d)

    async def begin_soon(self, deliveries: Any, timeout_s: float) -> bool:
        await asyncio.sleep(0.001)
        self.open.update(deliveries)
        return True


async def test_who_waits_holds_no_place_in_the_journal_and_is_written_down_before_it_starts(
    bench: Make,
) -> None:
    journal, seen = FakeJournal(), []

    @stage("classify", emits="out", limits=keyed(20))
    async def classify(task: Task, job: Context) -> Task:
        seen.append({d.job_id for d in journal.open})
        assert job.trace_id in seen[-1]
        return task

    b = bench(classify, journal=journal)
    await b.take(*(b.task(n) for n in range(15)))
    await b.finished(15)
    assert max(map(len, seen)) <= 15
    assert JOB.format(15) not in seen[0]
