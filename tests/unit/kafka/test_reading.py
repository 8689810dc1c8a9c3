"""Reading to given ends: markers at the end, an end that comes late, retention that moves on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.kafka import KafkaError, TopicFacts, reading
from streams.kafka.reading import Reading

TOPIC = "run.work"
FACTS = TopicFacts(TOPIC, UUID(int=1), 2)
STARTS = {(TOPIC, 0): 0, (TOPIC, 1): 0}


@dataclass
class Message:
    p: int
    at: int
    code: int | None = None

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return self.p

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)


class Consumer:
    """Gives what a script holds: one list for each poll. An assignment is kept in `assigned`."""

    def __init__(self, *polls: list[Message]) -> None:
        self.polls = deque(polls)
        self.assigned: list[dict[int, int]] = []
        self.rest: list[Message] = []

    def assign(self, parts: Any) -> None:
        self.assigned.append({tp.partition: tp.offset for tp in parts})

    def poll(self, _timeout_s: float) -> Message | None:
        if not self.polls:
            return None
        first, *self.rest = self.polls.popleft() or [None]  # type: ignore[list-item]
        return first

    def consume(self, _count: int, _timeout_s: float) -> list[Message]:
        return self.rest

    def close(self) -> None:
        pass


def eof(p: int, at: int) -> Message:
    return Message(p, at, KafkaError._PARTITION_EOF)


def read(
    monkeypatch: pytest.MonkeyPatch, consumer: Consumer, ends: dict[int, int], low: int = 0
) -> tuple[Reading, list[tuple[int, int]]]:
    monkeypatch.setattr(reading, "high_watermarks", lambda *_: ends)
    monkeypatch.setattr(reading, "low_watermarks", lambda *_: dict.fromkeys(ends, low))
    monkeypatch.setattr(reading, "reading_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(reading, "PATIENCE_S", 0.05)
    it = Reading(Settings(), None, [FACTS], STARTS)  # type: ignore[arg-type]
    return it, [(r.partition(), r.offset()) for batch in it.batches() for r in batch]


def test_it_ends_behind_markers_and_leaves_what_lies_past_the_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = Consumer(
        [Message(0, 0), Message(1, 0), eof(0, 1)],
        [],
        [eof(0, 7), Message(1, 1), Message(1, 2), Message(1, 3)],
    )
    it, found = read(monkeypatch, consumer, {0: 2, 1: 2})
    assert found == [(0, 0), (1, 0), (1, 1)]
    # What lay past an end is for the reading that begins there.
    assert it.at == {(TOPIC, 0): 2, (TOPIC, 1): 2}
    assert it.done == it.total == 4


def test_retention_that_passes_the_position_moves_the_start_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = Message(0, 0, KafkaError._AUTO_OFFSET_RESET)
    consumer = Consumer([Message(1, 0), gone, Message(1, 1)], [Message(1, 1), Message(0, 5)])
    it, found = read(monkeypatch, consumer, {0: 6, 1: 2}, low=5)
    assert found == [(1, 0), (1, 1), (0, 5)]
    assert consumer.assigned == [{0: 0, 1: 0}, {0: 5, 1: 1}]
    assert it.low[TOPIC, 0] == 5


def test_an_end_that_does_not_come_and_a_refusal_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadWorld, match=r"run.work\[0\] cannot be read past offset 1, and 3"):
        read(monkeypatch, Consumer([Message(0, 0), eof(0, 1)]), {0: 3})
    refused = Message(0, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BadSetup, match=r"refused to give run\.work"):
        read(monkeypatch, Consumer([refused]), {0: 3})


def test_nothing_to_read_opens_no_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    it, found = read(monkeypatch, Consumer(), {0: 0, 1: 0})
    assert (found, it.total) == ([], 0)


def test_ends_that_are_given_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "reading_consumer", lambda *_, **__: Consumer([Message(0, 3)]))
    ends = {(TOPIC, 0): 4, (TOPIC, 1): 0}
    it = Reading(Settings(), None, [FACTS], {**STARTS, (TOPIC, 0): 3}, ends)  # type: ignore[arg-type]
    assert [(r.partition(), r.offset()) for batch in it.batches() for r in batch] == [(0, 3)]
    assert (it.at, it.total) == (ends, 1)
