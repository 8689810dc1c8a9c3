"""Goal: a handler runs inside its hop, and nothing that it leaves open reaches the next record.

Method: the real stage loop with handlers that begin spans, set variables, and never end them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import set_span_in_context

from schemas.ids import span_id
from streams import Backoff, Context, Done, Stage, stage
from streams.tracing import HopContext, stamp_ids
from tests.unit.runtime.test_stage_loop import JOB, Bench, Task

TWICE = Backoff(attempts=2, first=timedelta(milliseconds=1))
left_behind: contextvars.ContextVar[str] = contextvars.ContextVar("left_behind", default="nothing")

Make = Callable[[Stage[Any, Any]], Bench]


class Seen:
    """What handlers found around them when they began: (job's number, span, variable)."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []
        self.tracer: trace.Tracer = trace.NoOpTracer()

    def look(self, task: Task, job: Context) -> None:
        current = trace.get_current_span().get_span_context()
        here = f"{current.trace_id:032x}-{current.span_id:016x}"
        assert here == job.traceparent[3:52], "another record's span is the current one"
        self.found.append((task.n, here, left_behind.get()))

    def leave_open(self, task: Task) -> None:
        span = self.tracer.start_span("never ended")
        attach(set_span_in_context(span))
        left_behind.set(f"record {task.n}")
        structlog.contextvars.bind_contextvars(record=task.n)


def provide(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> TracerProvider:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return provider


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    found.tracer = provide(monkeypatch).get_tracer("handler")
    return found


@pytest.fixture
async def bench(seen: Seen) -> AsyncIterator[Make]:
    made: list[Bench] = []

    def make(each: Stage[Any, Any]) -> Bench:
        made.append(Bench(each))
        return made[-1]

    yield make
    for each in made:
        await each.loop.stop(0)


async def check(b: Bench, seen: Seen, records: int, runs: int) -> None:
    """All records have ended, and every run began in a clean context."""
    await b.finished(records)
    assert len(seen.found) == runs
    assert {variable for _, _, variable in seen.found} == {"nothing"}
    assert not trace.get_current_span().get_span_context().is_valid
    assert structlog.contextvars.get_contextvars() == {}


async def test_an_inline_handler_that_raises_leaks_nothing(bench: Make, seen: Seen) -> None:
    @stage("classify", retry=TWICE)
    def classify(task: Task, job: Context) -> Done:
        seen.look(task, job)
        seen.leave_open(task)
        if task.n % 2:
            raise ValueError("no")
        return Done()

    b = bench(classify)
    await b.take(*(b.message(n, n) for n in range(6)))
    await check(b, seen, 6, runs=9)


async def test_a_concurrent_handler_that_raises_leaks_nothing(bench: Make, seen: Seen) -> None:
    # One at a time: each run is started by the end of the one before.
    @stage("classify", concurrency=1, retry=TWICE)
    async def classify(task: Task, job: Context) -> Done:
        seen.look(task, job)
        seen.leave_open(task)
        await asyncio.sleep(0)
        if task.n % 2:
            raise ValueError("no")
        return Done()

    b = bench(classify)
    await b.take(*(b.message(n, n) for n in range(6)))
    await check(b, seen, 6, runs=9)


async def test_a_handler_that_times_out_leaks_nothing(bench: Make, seen: Seen) -> None:
    @stage("classify", concurrency=1, retry=TWICE, timeout=timedelta(milliseconds=30))
    async def classify(task: Task, job: Context) -> Done:
        seen.look(task, job)
        seen.leave_open(task)
        if task.n == 0:
            await asyncio.Event().wait()
        return Done()

    b = bench(classify)
    await b.take(*(b.message(n, n) for n in range(3)))
    await check(b, seen, 3, runs=4)


async def test_a_handler_that_is_cancelled_leaks_nothing(bench: Make, seen: Seen) -> None:
    begun = asyncio.Event()

    @stage("classify", concurrency=1)
    async def classify(task: Task, job: Context) -> Done:
        seen.look(task, job)
        seen.leave_open(task)
        if task.n == 0:
            begun.set()
            await asyncio.Event().wait()
        return Done()

    b = bench(classify)
    await b.take(b.message(0, 0))
    await begun.wait()
    gone, b.tracker = (
        b.tracker,
        type(b.tracker)(
            topic="mail.classify",
            topic_id=b.tracker.topic_id,
            partition=1,
            head=0,
            metadata=b.tracker.metadata,
            finished=[],
        ),
    )
    await b.take(*(b.message(n, n) for n in (1, 2)))
    gone.live = False
    b.loop.end([gone])
    await check(b, seen, 2, runs=3)


async def test_a_span_of_the_handler_has_the_hop_as_parent(bench: Make, seen: Seen) -> None:
    parents: list[trace.SpanContext | None] = []

    @stage("classify")
    async def classify(task: Task, job: Context) -> Done:
        with seen.tracer.start_as_current_span("model call") as span:
            parents.append(getattr(span, "parent", None))
        return Done()

    b = bench(classify)
    await b.take(b.message(0, 0))
    await b.finished(1)
    job = JOB.format(1)
    (parent,) = parents
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (job, span_id(job, 2))
    assert parent.trace_flags.sampled


def context(job: str) -> Context:
    return Context(job, "mail", "classify", 1, 1, effects=None)  # type: ignore[arg-type]


def test_a_job_that_is_not_sampled_gives_handlers_a_span_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracer = provide(monkeypatch, ParentBased(TraceIdRatioBased(0.5))).get_tracer("handler")

    def sampled(_: None, __: Context) -> bool:
        span = tracer.start_span("model call")
        return span.get_span_context().trace_flags.sampled

    hop = HopContext()
    low, high = f"{1:032x}", f"{2**64 - 1:032x}"
    assert [hop.call(sampled, None, context(job)) for job in (low, high)] == [True, False]


def test_where_nothing_is_sampled_no_span_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, ParentBased(ALWAYS_OFF))
    assert not HopContext().on


def test_without_a_provider_no_span_is_made() -> None:
    assert not HopContext().on


def test_a_line_that_a_handler_logs_has_the_ids_of_its_hop_or_its_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracer = provide(monkeypatch).get_tracer("handler")
    job = JOB.format(7)

    def logs(_: None, __: Context) -> list[dict[str, Any]]:
        lines = [dict(stamp_ids(None, "info", {"event": "outside"}))]
        with tracer.start_as_current_span("model call") as span:
            lines.append(dict(stamp_ids(None, "info", {"event": "inside"})))
            lines.append({"span_id": f"{span.get_span_context().span_id:016x}"})
        return lines

    outside, inside, expected = HopContext().call(logs, None, context(job))
    assert (outside["trace_id"], outside["span_id"]) == (job, span_id(job, 1))
    assert (inside["trace_id"], inside["span_id"]) == (job, expected["span_id"])
    assert "trace_id" not in stamp_ids(None, "info", {"event": "elsewhere"})


def test_a_line_has_its_ids_with_tracing_off() -> None:
    def logs(_: None, __: Context) -> dict[str, Any]:
        return dict(stamp_ids(None, "info", {"event": "x"}))

    job = JOB.format(7)
    line = HopContext().call(logs, None, context(job))
    assert (line["trace_id"], line["span_id"]) == (job, span_id(job, 1))
