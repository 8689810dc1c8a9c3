"""Goal: what its limits hold back has no place in the journal; what died before keeps its own.

Method: the real journal of a stage, its rows are a set in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from streams.config import load_settings
from streams.kafka import TopicFacts
from streams.runtime.delivery import Delivery
from streams.runtime.journal import Journal
from streams.runtime.journal_rows import Place, Started, place
from streams.runtime.ownership import Ownership
from streams.runtime.stage_journal import StageJournal
from tests.unit.runtime.fakes import TOPIC_ID, FakeMessage, delivery, make_tracker


class Rows:
    """`written`: what is written down as started. `before`: what an earlier life has started."""

    def __init__(self) -> None:
        self.written: set[Place] = set()
        self.before: dict[Place, Started] = {}
        #: Holds up what takes rows out.
        self.may_undo = asyncio.Event()
        self.may_undo.set()

    async def look_or_begin(self, deliveries: Sequence[Delivery]) -> dict[Place, Started]:
        known = {place(d): self.before.pop(place(d)) for d in deliveries if place(d) in self.before}
        if not known:
            await self.begin(deliveries)
        return known

    async def begin(self, deliveries: Sequence[Delivery]) -> None:
        self.written.update(map(place, deliveries))

    async def undo(self, deliveries: Sequence[Delivery]) -> None:
        await self.may_undo.wait()
        self.written.difference_update(map(place, deliveries))

    settle = undo


@pytest.fixture
async def parts(monkeypatch: Any) -> AsyncIterator[tuple[StageJournal, Rows, Journal]]:
    journal, rows = Journal(None, load_settings(), "ab12"), Rows()  # type: ignore[arg-type]
    journal.on = True
    monkeypatch.setattr(journal, "join", lambda *_: rows)
    failures: list[BaseException] = []
    topic = TopicFacts("mail.classify", TOPIC_ID, 1)
    mine = StageJournal(journal, "classify", topic, Ownership(), 3, failures.append)
    journal._stages.append(mine)
    yield mine, rows, journal
    mine.stop()
    assert failures == []


def deliveries(count: int) -> list[Delivery]:
    tracker = make_tracker()
    made = [delivery(tracker, FakeMessage(b"{}", offset=n)) for n in range(count)]
    for d in made:
        d.key = b"%032x" % (d.offset + 1)
    return made


async def test_those_who_wait_do_not_keep_others_from_being_started(parts: Any) -> None:
    mine, rows, _ = parts
    waiting: list[Delivery] = []

    def start(d: Delivery) -> None:
        waiting.append(d)
        mine.make_way(d)

    batch = deliveries(50)
    async with asyncio.timeout(5):
        await mine.take(batch, 4, start, lambda *_: None)
    assert waiting == batch
    assert await mine.begin_soon(batch[:3], 1.0)
    await mine.finish()
    assert rows.written == {place(d) for d in batch[:3]}
    assert mine.open == set(batch[:3])


async def test_a_row_that_is_being_taken_out_does_not_take_the_next_one_with_it(parts: Any) -> None:
    mine, rows, _ = parts
    [d] = batch = deliveries(1)
    await mine.take(batch, 4, lambda _: None, lambda *_: None)
    rows.may_undo.clear()
    mine.make_way(d)
    begun = asyncio.create_task(mine.begin_soon(batch, 1.0))
    await asyncio.sleep(0.01)
    assert not begun.done(), "it waits until the old row is gone"
    rows.may_undo.set()
    assert await begun
    await mine.finish()
    assert rows.written == {place(d)}


async def test_what_died_before_keeps_its_place_and_others_wait_while_it_runs_alone(
    parts: Any,
) -> None:
    mine, rows, journal = parts
    killer, other = deliveries(2)
    now = datetime.now(UTC)
    rows.before = {place(killer): Started(2, now, now)}
    started: list[Delivery] = []

    def start(d: Delivery) -> None:
        started.append(d)
        mine.make_way(d)

    async with asyncio.timeout(5):
        await mine.take([killer, other], 4, start, lambda *_: None)
        while killer not in started:
            await asyncio.sleep(0.001)
    assert mine.open == {killer}, "it waits for its limit alone"
    assert not await mine.begin_soon([other], 0.01), "nothing starts beside it"
    killer.result = object()
    mine.released([killer])
    async with asyncio.timeout(5):
        while not await mine.begin_soon([other], 0.01):
            pass
    assert journal.on
