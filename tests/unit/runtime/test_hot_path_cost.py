"""Goal: what a record costs on the hot path does not grow unseen.

Method: from the polled message to the records of its commit, on the real loop and writer; calls
(Python's and C's) and blocks of memory are counted, not time, so the figures are the same on every
machine. A change that needs more raises the budget, and says what for.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest
from pydantic import BaseModel

from schemas import headers as h
from streams import Context, Flow, Stage, stage
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

RECORDS = 1_000
#: Per record; Python 3.11 to 3.13 differ by a few.
MAX_CALLS = {"sync": 62, "async": 99}
#: Blocks of memory that a record holds between its handler's end and its commit.
MAX_BLOCKS = {"sync": 12, "async": 12}


class Task(BaseModel):
    n: int


@stage("classify", emits="out")
def in_line(task: Task, _: Context) -> Task:
    return task


@stage("classify", emits="out", concurrency=RECORDS)
async def concurrent(task: Task, _: Context) -> Task:
    return task


STAGES: dict[str, Stage[Any, Any]] = {"sync": in_line, "async": concurrent}


class Path:
    """One stage from message to records."""

    def __init__(self, each: Stage[Any, Any]) -> None:
        settings = load_settings()
        flow = Flow("mail", (each,), sinks=("out",))
        self.writer = RecordWriter(flow, each, settings, "0.test")
        self.commits = RecordedCommits()
        self.tracker = make_tracker()
        self.loop = StageLoop(
            flow,
            each,
            settings,
            writer=self.writer,
            gate=OpenGate(),  # type: ignore[arg-type]
            effects=NoEffects(),
            commits=self.commits,  # type: ignore[arg-type]
            budget=Budget(10 * RECORDS, 2**30),
        )

    def messages(self, first: int) -> list[FakeMessage]:
        hop = [(h.HOP, b"1;1700000000000000;mail")]
        numbers = range(first, first + RECORDS)
        return [FakeMessage(b'{"n":%d}' % n, b"%032x" % (n + 1), hop, n) for n in numbers]

    async def take(self, messages: list[FakeMessage]) -> None:
        wanted = len(self.commits.added) + len(messages)
        await self.loop.take([delivery(self.tracker, m) for m in messages])
        while len(self.commits.added) < wanted:
            await asyncio.sleep(0)


@pytest.mark.parametrize("kind", STAGES)
async def test_calls_of_a_record(kind: str) -> None:
    path = Path(STAGES[kind])
    await path.take(path.messages(0))
    path.commits.added.clear()
    messages = path.messages(RECORDS)
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        await path.take(messages)
        for d in path.commits.added:
            path.writer.records(d)
    finally:
        sys.setprofile(None)
    await path.loop.stop(0)
    assert calls / RECORDS <= MAX_CALLS[kind]


@pytest.mark.parametrize("kind", STAGES)
async def test_memory_of_a_record(kind: str) -> None:
    path = Path(STAGES[kind])
    await path.take(path.messages(0))
    path.commits.added.clear()
    messages = path.messages(RECORDS)
    gc.collect()
    before = sys.getallocatedblocks()
    await path.take(messages)
    gc.collect()
    held = sys.getallocatedblocks() - before
    await path.loop.stop(0)
    assert held / RECORDS <= MAX_BLOCKS[kind]
