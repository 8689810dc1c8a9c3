"""Reads a topic for an agent that keeps its own positions: projector, tracer, timekeeper.

The group only shares out partitions; what is applied is known by `positions`, never by the group's
offsets, so a zombie member can at most read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from threading import Event, Semaphore
from typing import Generic, TypeVar

import structlog

from streams.config import Settings
from streams.errors import BadWorld
from streams.kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Record,
    TopicFacts,
    TopicPartition,
    pull,
)
from streams.positions import Move
from streams.runtime.polling import POLL_S, PollingThread

log = structlog.get_logger(__name__)

_BATCH_RECORDS = 5_000
#: Batches that may be delivered and not yet done.
_AHEAD = 2

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Batch(Generic[R]):
    """Records of the topic and the moves that they make; of one `epoch` of the reader."""

    records: Sequence[R]
    moves: Sequence[Move]
    epoch: int


class PositionReader(PollingThread, Generic[R]):
    """A polling thread that delivers `Batch`es; the agent calls `done` after each.

    `positions` tells the next offset of each partition (none: its first record, whichever that is
    by now); it is asked at each assignment and after `reset`. `read` makes what a batch holds.
    """

    tell_ends = True
    gone_advice = (
        "What was deleted unread is lost. To go on with the oldest record that is left, delete the "
        "partition's row from the agent's table of offsets in Postgres"
    )

    def __init__(
        self,
        settings: Settings,
        topic: TopicFacts,
        group: str,
        *,
        positions: Callable[[], Awaitable[dict[int, int]]],
        read: Callable[[TopicFacts, Record], R],
        deliver: Callable[[Batch[R]], None],
        fail: Callable[[BaseException], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(settings, topic, group, fail)
        self._positions, self._read = positions, read
        self._deliver, self._loop = deliver, loop
        self._next: dict[int, int] = {}
        #: A new object for each assignment of a partition.
        self._assignments: dict[int, object] = {}
        self._room = Semaphore(_AHEAD)
        self._reset = Event()
        #: Batches of an older epoch were read from positions that no longer hold: drop them.
        self.epoch = 0

    def done(self) -> None:
        """A batch was applied or dropped."""
        self._room.release()

    def reset(self) -> None:
        """Positions moved under the reader: ask for them again and read from there."""
        self._reset.set()

    def step(self, consumer: Consumer) -> None:
        if self._reset.is_set():
            self._reset.clear()
            self._seek(consumer)
        # While the agent is busy nothing is polled; should that outlast the poll interval, another
        # member gets the partitions, and positions in Postgres keep that harmless.
        if not self._room.acquire(timeout=POLL_S):
            return
        batch = None
        try:
            batch = self._batch(pull(consumer, _BATCH_RECORDS, POLL_S, self._assignments.get))
        finally:
            # Also when the consumer broke: another one is to have all the room.
            if batch is None:
                self._room.release()
        if batch is not None:
            self._deliver(batch)

    def _batch(self, messages: Sequence[Record]) -> Batch[R] | None:
        records: list[R] = []
        ends: dict[int, int] = {}
        for m in messages:
            partition, offset = m.partition(), m.offset()
            if (error := m.error()) is not None:
                # The end of a partition lies behind markers, which are no records.
                if error.code() == KafkaError._PARTITION_EOF and partition in self._next:
                    ends[partition] = max(ends.get(partition, 0), offset)
                else:
                    self.judge(error)
                continue
            if partition not in self._next or offset < self._next[partition]:
                continue
            ends[partition] = offset + 1
            records.append(self._read(self._topic, m))
        moves = [Move(p, self._next[p], end) for p, end in ends.items() if end > self._next[p]]
        if not moves:
            return None
        self._next.update((m.partition, m.to_offset) for m in moves)
        return Batch(records, moves, self.epoch)

    def _ask(self) -> dict[int, int]:
        while not self._ending.is_set():
            asked = asyncio.run_coroutine_threadsafe(_awaited(self._positions), self._loop)
            try:
                return asked.result(60)
            except BadWorld as e:
                log.warning("stage_paused", group=self._group, why=e.message)
                time.sleep(0.5)
        return {}

    def _seek(self, consumer: Consumer) -> None:
        self.epoch += 1
        known = self._ask()
        for partition in list(self._next):
            self._next[partition] = known.get(partition, 0)
            start = known.get(partition, OFFSET_BEGINNING)
            consumer.seek(TopicPartition(self._topic.name, partition, start))

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        known = self._ask() if partitions else {}
        for tp in partitions:
            self._next[tp.partition] = known.get(tp.partition, 0)
            tp.offset = known.get(tp.partition, OFFSET_BEGINNING)
            self._assignments[tp.partition] = object()
        consumer.incremental_assign(partitions)
        log.info("assigned", group=self._group, partitions=[p.partition for p in partitions])

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._next.pop(tp.partition, None)
            self._assignments.pop(tp.partition, None)
        consumer.incremental_unassign(partitions)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.on_revoke(consumer, partitions)

    def forget(self) -> None:
        self._next.clear()
        self._assignments.clear()


async def _awaited(ask: Callable[[], Awaitable[dict[int, int]]]) -> dict[int, int]:
    return await ask()
