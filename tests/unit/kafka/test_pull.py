"""Goal: no record of an assignment that is gone is taken for one of the assignment after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.kafka import pull
from tests.unit.runtime.fakes import FakeMessage


class FakeConsumer:
    """Gives one record by `poll` and two by `consume`; `between` runs inside of the second call."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self._between = between

    def poll(self, _: float) -> FakeMessage:
        return FakeMessage(b"first", offset=7)

    def consume(self, most: int, _: float) -> list[FakeMessage]:
        self._between()
        return [FakeMessage(b"rest", offset=8), FakeMessage(b"rest", offset=9)][:most]


def offsets(consumer: Any, owner: Callable[[int], object], most: int = 10) -> list[int]:
    return [m.offset() for m in pull(consumer, most, 0, owner)]


def test_what_there_is_comes_in_one_batch_and_no_more_than_asked_for() -> None:
    owner = {0: object()}
    assert offsets(FakeConsumer(), owner.get) == [7, 8, 9]
    assert offsets(FakeConsumer(), owner.get, most=2) == [7, 8]
    assert offsets(FakeConsumer(), owner.get, most=1) == [7]


def test_a_partition_that_came_back_between_the_calls_drops_the_record_of_its_former_life() -> None:
    owner = {0: object()}
    consumer = FakeConsumer(lambda: owner.update({0: object()}))
    assert offsets(consumer, owner.get) == [8, 9]


def test_a_rebalance_that_leaves_the_partition_alone_loses_nothing() -> None:
    owner = {0: object(), 1: object()}
    consumer = FakeConsumer(lambda: owner.update({1: object()}))
    assert offsets(consumer, owner.get) == [7, 8, 9]
