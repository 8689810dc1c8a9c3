"""Many requests, few calls; errors and cancelled waiters stay where they belong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streams.ledger.batch import Batcher


class Double:
    """Doubles numbers, one batch at a time, once the gate is open."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        await self.gate.wait()
        if -1 in numbers:
            raise ValueError("minus one")
        return [2 * n for n in numbers]


async def test_what_arrives_during_a_round_trip_goes_with_the_next() -> None:
    double = Double()
    batcher = Batcher(double, limit=100)
    first = batcher.submit(1)
    while not double.batches:
        await asyncio.sleep(0)
    rest = [batcher.submit(n) for n in range(2, 50)]
    double.gate.set()
    assert await asyncio.gather(first, *rest) == [2 * n for n in range(1, 50)]
    assert double.batches == [[1], list(range(2, 50))]


async def test_a_batch_is_no_larger_than_its_limit() -> None:
    double = Double()
    double.gate.set()
    batcher = Batcher(double, limit=3)
    await asyncio.gather(*(batcher.submit(n) for n in range(7)))
    assert double.batches == [[0, 1, 2], [3, 4, 5], [6]]


async def test_an_error_is_the_answer_to_its_batch_only() -> None:
    double = Double()
    double.gate.set()
    batcher = Batcher(double, limit=1)
    bad, good = batcher.submit(-1), batcher.submit(1)
    with pytest.raises(ValueError, match="minus one"):
        await bad
    assert await good == 2


async def test_a_cancelled_waiter_disturbs_nobody_and_its_request_is_done() -> None:
    double = Double()
    batcher = Batcher(double, limit=100)

    async def wait_for(future: asyncio.Future[int]) -> int:
        return await asyncio.shield(future)

    mine, other = batcher.submit(1), batcher.submit(2)
    waiter = asyncio.create_task(wait_for(mine))
    while not double.batches:
        await asyncio.sleep(0)
    waiter.cancel()
    double.gate.set()
    assert await other == 4
    assert await mine == 2
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_drain_returns_when_all_is_answered() -> None:
    double = Double()
    double.gate.set()
    batcher = Batcher(double, limit=2)
    futures = [batcher.submit(n) for n in range(5)]
    await batcher.drain()
    assert all(f.done() for f in futures)
