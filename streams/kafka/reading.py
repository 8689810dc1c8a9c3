"""Reads topics to given ends, read-committed, by assignment: no group, no commits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.kafka.clients import Record, reading_consumer
from streams.kafka.faults import WORLD, blame
from streams.kafka.offsets import high_watermarks, low_watermarks
from streams.kafka.topics import TopicFacts

_BATCH_RECORDS: Final = 5_000
_POLL_S: Final = 0.1
#: Of packed batches, which may be ten times as large unpacked.
_PREFETCH_KB: Final = 4_096
#: How long nothing may come before the ends: longer than a dead worker's transaction stays open.
PATIENCE_S: Final = 120.0

#: Topic's name and partition.
Place = tuple[str, int]


class Reading:
    """One pass over some topics: `batches` yields all records from `starts` to below `ends`, in
    offset order within a partition. A start below 0 says that nothing is to be read; without `ends`
    they are the present high watermarks. `low` tells where reading really began: retention may move
    on meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        admin: AdminClient,
        topics: Sequence[TopicFacts],
        starts: Mapping[Place, int],
        ends: Mapping[Place, int] | None = None,
    ) -> None:
        self._settings, self._admin = settings, admin
        self._topics = {t.name: t for t in topics}
        self.ends: dict[Place, int] = dict(ends) if ends is not None else self._present_ends()
        self.low: dict[Place, int] = {
            place: end if starts[place] < 0 else min(starts[place], end)
            for place, end in self.ends.items()
        }
        #: Next offset to come; never past the end, so that another reading can begin there.
        self.at = dict(self.low)

    def _present_ends(self) -> dict[Place, int]:
        return {
            (name, p): end
            for name, topic in self._topics.items()
            for p, end in high_watermarks(self._settings, self._admin, topic).items()
        }

    @property
    def total(self) -> int:
        return sum(self.ends.values()) - sum(self.low.values())

    @property
    def done(self) -> int:
        return sum(self.at.values()) - sum(self.low.values())

    def batches(self) -> Iterator[list[Record]]:
        """Raises `BadWorld` when Kafka does not give what it has."""
        open_ = {x for x, end in self.ends.items() if self.at[x] < end}
        if not open_:
            return
        group = f"{next(iter(self._topics))}.reading"
        consumer = reading_consumer(self._settings, group, prefetch_kb=_PREFETCH_KB)
        try:
            consumer.assign([TopicPartition(t, p, self.at[t, p]) for t, p in sorted(open_)])
            moved_at = time.monotonic()
            while open_:
                batch, moved = self._take(consumer, open_)
                if batch:
                    yield batch
                if moved:
                    moved_at = time.monotonic()
                elif time.monotonic() - moved_at > PATIENCE_S:
                    raise BadWorld(self._stands_still(open_))
        finally:
            consumer.close()

    def _take(self, consumer: Consumer, open_: set[Place]) -> tuple[list[Record], bool]:
        """The records of one poll that lie below the ends; places that are done leave `open_`."""
        with blame(self._settings, "reading topics"):
            first = consumer.poll(_POLL_S)
            if first is None:
                return [], False
            rest = consumer.consume(_BATCH_RECORDS - 1, 0)
        batch, moved = [], False
        ends, reached = self.ends, self.at
        for record in cast("list[Record]", [first, *rest]):
            place = (record.topic(), record.partition())
            offset, error = record.offset(), record.error()
            if error is not None:
                moved |= self._judge(consumer, place, error, offset)
            elif offset >= ends[place]:
                # Not beyond: what lies there is for a later reading.
                reached[place] = ends[place]
            elif offset >= reached[place]:
                # Others were read before the consumer was assigned anew.
                batch.append(record)
                reached[place] = offset + 1
        for place in [x for x in open_ if reached[x] >= ends[x]]:
            open_.discard(place)
        return batch, moved or bool(batch)

    def _judge(self, consumer: Consumer, place: Place, error: KafkaError, offset: int) -> bool:
        """Errors come as messages. True when the partition has moved."""
        if error.code() == KafkaError._PARTITION_EOF:
            # Markers of transactions lie before the end, and are no records.
            reached = max(self.at[place], min(offset, self.ends[place]))
            moved = reached > self.at[place]
            self.at[place] = reached
            return moved
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Retention has passed the position: go on where the topic begins now.
            topic = self._topics[place[0]]
            low = low_watermarks(self._settings, self._admin, topic)[place[1]]
            self.at[place] = max(self.at[place], low)
            self.low[place] = max(self.low[place], low)
            consumer.assign(
                [TopicPartition(t, p, at) for (t, p), at in self.at.items() if at < self.ends[t, p]]
            )
            return True
        if error.code() not in WORLD:
            raise BadSetup(f"Kafka refused to give {place[0]}[{place[1]}]: {error.str()}.")
        return False

    def _stands_still(self, open_: set[Place]) -> str:
        topic, partition = min(open_)
        return (
            f"{topic}[{partition}] cannot be read past offset {self.at[topic, partition]}, and "
            f"{self.ends[topic, partition]} is its end: a transaction seems to hang there. "
            "`kafka-transactions.sh find-hanging` shows it, `abort` ends it. Then try again."
        )
