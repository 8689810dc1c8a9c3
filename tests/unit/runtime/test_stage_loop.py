"""Goal: each record of a stage gets exactly one fate, in order per job, and holds up no other job.

Method: the real loop and record writer; the consumer and the group commit are recorded lists.
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
from streams import (
    Backoff,
    BadRecord,
    BadWorld,
    Context,
    Done,
    EffectParked,
    Emit,
    Flow,
    Reject,
    Retry,
    Stage,
    stage,
)
from streams.config import load_settings
from streams.runtime.budget import Budget
from streams.runtime.records import RecordWriter
from streams.runtime.stage_loop import StageLoop
from tests.unit.runtime.fakes import (
    FakeMessage,
    NoEffects,
    OpenGate,
    RecordedCommits,
    delivery,
    make_tracker,
)

QUICK = Backoff(attempts=3, first=timedelta(milliseconds=1))
#: Pauses of a stage.
SHORT = Backoff(attempts=2**31, first=timedelta(milliseconds=1), limit=timedelta(milliseconds=1))
JOB = "{:032x}"


class Task(BaseModel):
    n: int


class Bench:
    """One stage loop and what came out of it."""

    def __init__(self, each: Stage[Any, Any], *others: Stage[Any, Any], **parts: Any) -> None:
        self.settings = load_settings(max_payload_bytes=1_000, cancel_grace_s=0.05)
        flow = Flow("mail", (each, *others), sinks=("out", "other"))
        self.commits = RecordedCommits()
        self.budget = Budget(1_000, 2**20)
        self.writer = RecordWriter(flow, each, self.settings, "0.test")
        self.commits.write = self.writer.records
        self.tracker = make_tracker()
        self.loop = StageLoop(
            flow,
            each,
            self.settings,
            writer=self.writer,
            gate=OpenGate(),
            effects=NoEffects(),
            commits=self.commits,
            budget=self.budget,
            **parts,
        )
        self._offset = 0

    def message(self, job: int, n: Any, value: bytes | None = b"") -> FakeMessage:
        self._offset += 1
        headers = [(h.HOP, b"1;1700000000000000;mail")]
        body = value if value != b"" else b'{"n": %d}' % n
        return FakeMessage(body, JOB.format(job + 1).encode(), headers, self._offset)

    async def take(self, *messages: FakeMessage) -> None:
        batch = [delivery(self.tracker, m) for m in messages]
        self.budget.take(batch)
        await self.loop.take(batch)

    def records(self, n: int) -> Any:
        return self.writer.records(self.commits.added[n])

    async def finished(self, records: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(20):
            while len(self.commits.added) < records:
                await asyncio.sleep(0.001)
        return self.commits.states()


@pytest.fixture
async def bench() -> AsyncIterator[Callable[[Stage[Any, Any]], Bench]]:
    made: list[Bench] = []

    def make(each: Stage[Any, Any]) -> Bench:
        made.append(Bench(each))
        return made[-1]

    yield make
    for each in made:
        await each.loop.stop(0)


async def test_a_model_is_handed_to_the_only_emits(bench: Any) -> None:
    @stage("classify", emits="out")
    def classify(task: Task, job: Context) -> Task:
        return Task(n=task.n + job.seq)

    b = bench(classify)
    await b.take(b.message(0, 5))
    [state] = await b.finished(1)
    assert (state["status"], state["data"], state["seq"], state["to"]) == (
        "done",
        {"n": 7},
        2,
        ["out"],
    )
    topic, key, value, headers = b.records(0)[1]
    assert (topic, key, value) == ("mail.out", JOB.format(1).encode(), b'{"n":7}')
    found = dict(headers)
    assert (found[h.HOP], found[h.CE_TYPE]) == (b"2;1700000000000000;mail", b"mail.task")
    assert found[h.TRACEPARENT].startswith(b"00-" + key)


async def test_each_outcome_writes_its_records(bench: Any) -> None:
    @stage("classify", emits=("out", "other"))
    async def classify(task: Task, job: Context) -> Emit | Done | Reject:
        return [Emit("other", task), Done(task), Done(), Reject("no interest")][task.n]

    b = bench(classify)
    await b.take(*(b.message(i, i) for i in range(4)))
    states = {s["traceId"][-1]: s for s in await b.finished(4)}
    assert [states[k]["status"] for k in "1234"] == ["done", "done", "done", "failed"]
    assert [states[k]["data"] for k in "1234"] == [{"n": 0}, {"n": 1}, None, None]
    assert states["4"]["error"] == {"kind": "rejected", "message": "no interest"}
    topics = {d.job_id[-1]: [r[0] for r in b.writer.records(d)] for d in b.commits.added}
    assert topics == {
        "1": ["job-state", "mail.other"],
        "2": ["job-state"],
        "3": ["job-state"],
        "4": ["job-state", "mail.classify.dlq"],
    }


async def test_records_of_one_job_run_one_after_the_other_and_jobs_side_by_side(bench: Any) -> None:
    running: set[str] = set()
    order: dict[str, list[int]] = {}
    most = 0

    @stage("classify", emits="out", concurrency=50)
    async def classify(task: Task, job: Context) -> Task:
        nonlocal most
        assert job.trace_id not in running
        running.add(job.trace_id)
        most = max(most, len(running))
        await asyncio.sleep(0.001 * (task.n % 3))
        running.discard(job.trace_id)
        order.setdefault(job.trace_id, []).append(task.n)
        return task

    b = bench(classify)
    await b.take(*(b.message(job, n) for n in range(10) for job in range(20)))
    await b.finished(200)
    assert all(seen == list(range(10)) for seen in order.values())
    assert most == 20


async def test_no_more_handlers_run_at_once_than_the_stage_allows(bench: Any) -> None:
    running = most = 0

    @stage("classify", emits="out", concurrency=3)
    async def classify(task: Task, job: Context) -> Task:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return task

    b = bench(classify)
    await b.take(*(b.message(i, i) for i in range(30)))
    await b.finished(30)
    assert most == 3


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_failing_handler_is_retried_and_holds_up_only_its_own_job(
    bench: Any, kind: str
) -> None:
    runs: list[tuple[int, int]] = []

    def work(task: Task, job: Context) -> Task:
        runs.append((task.n, job.attempt))
        if task.n == 0 and job.attempt < 3:
            raise ValueError("not yet")
        return task

    async def work_async(task: Task, job: Context) -> Task:
        return work(task, job)

    declared = stage("classify", emits="out", retry=QUICK)
    b = bench(declared(work if kind == "sync" else work_async))
    await b.take(b.message(0, 0), b.message(1, 1), b.message(0, 2))
    states = await b.finished(3)
    assert [(s["data"]["n"], s["attempts"]) for s in states] == [(1, 1), (0, 3), (2, 1)]


async def test_a_handler_that_fails_for_good_is_dead_lettered_with_its_attempts(bench: Any) -> None:
    @stage("classify", emits="out", retry=QUICK)
    async def classify(task: Task, job: Context) -> Task:
        raise RuntimeError("broken")

    b = bench(classify)
    await b.take(b.message(0, 0))
    [state] = await b.finished(1)
    assert (state["status"], state["attempts"]) == ("failed", 3)
    assert state["error"]["kind"] == "handler_failed"
    topic, _, value, headers = b.records(0)[1]
    found = dict(headers)
    assert (topic, value) == ("mail.classify.dlq", b'{"n": 0}')
    assert found[h.DLQ_MESSAGE] == b"Stage classify failed 3 times: RuntimeError: broken"
    assert (found[h.DLQ_OFFSET], found[h.DLQ_SEQ]) == (b"1", b"2")


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        MemoryError(),
        RecursionError(),
        SystemExit(3),
        GeneratorExit(),
        TimeoutError(),
    ],
    ids=lambda e: type(e).__name__,
)
async def test_whatever_a_handler_raises_is_an_attempt_and_never_ends_the_loop(
    bench: Any, error: BaseException
) -> None:
    @stage("classify", emits="out", retry=QUICK)
    async def classify(task: Task, job: Context) -> Task:
        if task.n == 0:
            raise error
        return task

    b = bench(classify)
    await b.take(b.message(0, 0), b.message(1, 1))
    states = await b.finished(2)
    assert sorted((s["status"], s["attempts"]) for s in states) == [("done", 1), ("failed", 3)]


async def test_a_bad_record_is_not_tried_again(bench: Any) -> None:
    @stage("classify", emits="out", retry=QUICK)
    def classify(task: Task, job: Context) -> Task:
        raise BadRecord("the account does not exist")

    b = bench(classify)
    await b.take(b.message(0, 0))
    [state] = await b.finished(1)
    assert state["attempts"] == 1
    assert state["error"] == {"kind": "bad_record", "message": "the account does not exist"}


async def test_a_bad_world_spends_no_attempt(bench: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("streams.runtime.pause.BETWEEN_PROBES", SHORT)
    runs = 0

    @stage("classify", emits="out", retry=QUICK)
    async def classify(task: Task, job: Context) -> Task:
        nonlocal runs
        runs += 1
        if runs < 10:
            raise BadWorld("the target is away")
        return task

    b = bench(classify)
    await b.take(b.message(0, 0))
    [state] = await b.finished(1)
    assert (runs, state["status"], state["attempts"]) == (10, "done", 1)


async def test_retry_waits_as_told_and_counts(bench: Any) -> None:
    @stage("classify", emits="out", retry=QUICK)
    async def classify(task: Task, job: Context) -> Task | Retry:
        return Retry(timedelta(milliseconds=5), "busy") if job.attempt == 1 else task

    b = bench(classify)
    await b.take(b.message(0, 0))
    [state] = await b.finished(1)
    assert (state["status"], state["attempts"]) == ("done", 2)


async def test_a_parked_effect_leaves_the_job_waiting(bench: Any) -> None:
    @stage("classify", emits="out", retry=QUICK)
    async def classify(task: Task, job: Context) -> Task:
        raise EffectParked("it may have happened", kind="in_doubt", key="k")

    b = bench(classify)
    await b.take(b.message(0, 0))
    [state] = await b.finished(1)
    assert (state["status"], state["error"]["kind"]) == ("waiting", "in_doubt")


async def test_a_handler_that_runs_too_long_is_stopped_and_tried_again(bench: Any) -> None:
    @stage("classify", emits="out", retry=QUICK, timeout=timedelta(milliseconds=10))
    async def classify(task: Task, job: Context) -> Task:
        if job.attempt == 1:
            await asyncio.Event().wait()
        return task

    b = bench(classify)
    await b.take(b.message(0, 0))
    [state] = await b.finished(1)
    assert (state["status"], state["attempts"]) == ("done", 2)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{", "is no Task"),
        (b'{"n": "many"}', "n: Input should be a valid integer"),
        (b"\xff\xfe", "is no Task"),
        (b" ", "is no Task"),
        (b'{"n": 1, "pad": "' + b"x" * 1_000 + b'"}', "the limit is 1000"),
        (b'{"n": ' + b"[" * 400 + b"]" * 400 + b"}", "is no Task"),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_payload_that_is_no_input_is_dead_lettered_without_a_run(
    bench: Any, kind: str, value: bytes, says: str
) -> None:
    def work(task: Task, job: Context) -> Task:
        raise AssertionError("must not run")

    async def work_async(task: Task, job: Context) -> Task:
        raise AssertionError("must not run")

    b = bench(stage("classify", emits="out")(work if kind == "sync" else work_async))
    await b.take(b.message(0, 0, value))
    [state] = await b.finished(1)
    assert (state["status"], state["attempts"]) == ("failed", 0)
    assert says in state["error"]["message"]
    assert "many" not in state["error"]["message"], "values are private"


async def test_a_null_value_is_no_job_and_its_offset_moves(bench: Any) -> None:
    @stage("classify", emits="out")
    async def classify(task: Task, job: Context) -> Task:
        return task

    b = bench(classify)
    await b.take(b.message(0, 0, None))
    assert await b.finished(1) == []
    assert b.records(0) == ()


async def test_an_undeclared_target_and_a_too_large_output_are_dead_letters(bench: Any) -> None:
    class Blown(BaseModel):
        text: str

    nowhere = "nowhere"  # a name that no look at the code can find

    @stage("classify", emits="out", retry=QUICK)
    async def classify(task: Task, job: Context) -> Emit:
        return Emit(nowhere, task) if task.n == 0 else Emit("out", Blown(text="x" * 2_000))

    b = bench(classify)
    await b.take(b.message(0, 0), b.message(1, 1))
    states = await b.finished(2)
    assert {s["error"]["kind"] for s in states} == {"bad_setup", "bad_record"}


async def test_work_of_a_partition_that_is_gone_is_cancelled_and_given_back(bench: Any) -> None:
    started = asyncio.Event()

    @stage("classify", emits="out", concurrency=2)
    async def classify(task: Task, job: Context) -> Task:
        started.set()
        await asyncio.Event().wait()
        return task

    b = bench(classify)
    await b.take(*(b.message(i % 3, i) for i in range(9)))
    await started.wait()
    b.tracker.live = False
    b.loop.end([b.tracker])
    async with asyncio.timeout(20):
        while b.budget.records:
            await asyncio.sleep(0.001)
    assert b.commits.added == []


async def test_a_graceful_stop_keeps_what_finishes_in_time_and_releases_the_rest(
    bench: Any,
) -> None:
    release = asyncio.Event()

    @stage("classify", emits="out", concurrency=2)
    async def classify(task: Task, job: Context) -> Task:
        await (release.wait() if task.n == 0 else asyncio.Event().wait())
        return task

    b = bench(classify)
    await b.take(*(b.message(i, i) for i in range(5)))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(b.loop.stop(0.2))
    await asyncio.sleep(0)
    release.set()
    await stopping
    assert [s["data"]["n"] for s in b.commits.states()] == [0]
    assert b.budget.records == 1, "what is finished is released by the commit, the rest is back"


async def test_slow_inline_handlers_give_the_event_loop_its_turns(bench: Any) -> None:
    """Fewer records than a slice, more time than a loop may stand still."""

    @stage("classify", emits="out")
    def slow(task: Task, _: Context) -> Task:
        time.sleep(0.03)
        return task

    b = bench(slow)
    taken = asyncio.create_task(b.take(*(b.message(n, n) for n in range(20))))
    turns = 0
    while not taken.done():
        await asyncio.sleep(0)
        turns += 1
    await taken
    assert len(b.commits.added) == 20
    # One each 0.1 s, of some 0.6 s.
    assert turns >= 4
