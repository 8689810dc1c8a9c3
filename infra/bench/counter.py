"""Reading the topics: live for times, afterwards for the truth. Always read-committed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from types import TracebackType
from typing import Any, Final, Self

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from infra.bench.topics import PARTITIONS
from infra.bench.verdict import Step

_TIMEOUT_S: Final = 10.0


def _open(bootstrap: str, **options: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            # Never joined and never committed: partitions are assigned by hand.
            "group.id": "bench-reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            **options,
        }
    )


def _from_the_start(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, p, 0) for p in range(PARTITIONS)]


class _Reading:
    """A consumer that is closed at the end of a `with` block."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = _open(bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._consumer.close()


class Arrivals(_Reading):
    """Follows a topic while a peer runs and notes when each key first arrived (epoch seconds)."""

    def __init__(self, bootstrap: str, topic: str, *, one_by_one: bool = False) -> None:
        #: Batches are cheap on the machine's time; one by one gives each record its own time.
        self._batch = 1 if one_by_one else 5_000
        super().__init__(bootstrap)
        self._consumer.assign(_from_the_start(topic))
        self.first_at: dict[bytes, float] = {}
        self.last_at: float | None = None

    def read(self, wait_s: float = 0.1) -> int:
        """Take what has arrived within `wait_s`; how many records that was."""
        messages: list[Any] = self._consumer.consume(self._batch, wait_s)
        now = time.time()
        taken = 0
        for message in messages:
            if message.error():
                continue
            taken += 1
            self.first_at.setdefault(message.key(), now)
        if taken:
            self.last_at = now
        return taken

    def count(self, wait_s: float) -> int:
        """How many keys have arrived, after reading for at most `wait_s` more."""
        self.read(wait_s)
        return len(self.first_at)

    def wait_for(
        self, keys: Set[bytes], *, limit_s: float, stall_s: float, check: Callable[[], None]
    ) -> bool:
        """Read until all `keys` have arrived: True. False after `limit_s`, or `stall_s` of silence.

        `check` is called on each turn; what it raises ends the wait.
        """
        start = moved = time.monotonic()
        while len(self.first_at) < len(keys) or not self.first_at.keys() >= keys:
            check()
            if self.read():
                moved = time.monotonic()
            now = time.monotonic()
            if now - start > limit_s or (self.first_at and now - moved > stall_s):
                return False
        return True


def records(bootstrap: str, topic: str) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every committed record of a topic, from its start to its present end."""
    consumer = _open(bootstrap, **{"enable.partition.eof": True})
    try:
        consumer.assign(_from_the_start(topic))
        open_partitions, heard = PARTITIONS, time.monotonic()
        while open_partitions:
            # `consume` waits out its time unless the batch is full, so the time is short.
            messages: list[Any] = consumer.consume(5_000, 0.1)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _TIMEOUT_S:
                raise RuntimeError(f"The broker sent nothing of {topic} for {_TIMEOUT_S:.0f} s.")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions -= 1
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def count_done(bootstrap: str, topic: str) -> Counter[bytes]:
    """How often each key is on `done`."""
    return Counter(key for key, _ in records(bootstrap, topic))


def count_steps(bootstrap: str, topic: str) -> Counter[Step]:
    """How often each (key, seq) is on `job-state`.

    The topic is compacted, but never its newest segment, and a measurement fills no segment (1 GB).
    """
    return Counter((key, orjson.loads(value)["seq"]) for key, value in records(bootstrap, topic))


class Ends(_Reading):
    """Asks for the ends of topics: progress without reading, and the first record's time."""

    def total(self, *topics: str) -> int:
        """Offsets used in `topics`: records, and one marker per partition and transaction."""
        return sum(self._end(t, p) for t in topics for p in range(PARTITIONS))

    def _end(self, topic: str, partition: int) -> int:
        # A partition that has just been made may not have its leader yet.
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                place = TopicPartition(topic, partition)
                return int(self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)[1])
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def first_record_at(self, topic: str) -> float | None:
        """When the earliest record of a topic was produced (epoch seconds); None if it is empty."""
        begin = [TopicPartition(topic, p, 0) for p in range(PARTITIONS)]
        self._consumer.assign(begin)
        times: list[float] = []
        waiting = {p for p in range(PARTITIONS) if self._end(topic, p)}
        deadline = time.monotonic() + _TIMEOUT_S
        while waiting and time.monotonic() < deadline:
            message = self._consumer.poll(0.1)
            if message is None or message.error() or message.partition() not in waiting:
                continue
            waiting.discard(message.partition())
            times.append(message.timestamp()[1] / 1000)
        self._consumer.unassign()
        return min(times, default=None)
