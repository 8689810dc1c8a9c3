"""What the topics themselves say: records as a read-committed (or any) reader sees them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it lies in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    def header(self, name: str) -> bytes | None:
        """The last value of a header; None where there is none."""
        return dict(self.headers).get(name)

    @property
    def job(self) -> str:
        assert self.key is not None
        return self.key.decode()

    @property
    def seq(self) -> int:
        """The step that wrote this hand-off, which our own program spelled."""
        return int((self.header("handoff_hop") or b"0").split(b";")[0])


class TopicLog:
    """All records of a topic so far. `advance` reads what has come since, to the present end."""

    def __init__(self, servers: str, topic: str, *, committed: bool = True) -> None:
        self.topic = topic
        self.records: list[Record] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"{topic}.test-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
                "reconnect.backoff.ms": 20,
                "error_cb": lambda _: None,
            }
        )
        found = self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        assert found.error is None, f"{topic}: {found.error}"
        self._next = dict.fromkeys(found.partitions, 0)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in self._next])

    def advance(self) -> list[Record]:
        """The records that have come since the last call; all are in `records`."""
        ends = {p: self._end(p) for p in self._next}
        before = len(self.records)
        deadline = time.monotonic() + _TIMEOUT_S
        while any(self._next[p] < end for p, end in ends.items()):
            for message in self._consumer.consume(5_000, 0.05):
                self._take(message)
            assert time.monotonic() < deadline, f"{self.topic} cannot be read to its end"
        return self.records[before:]

    def _end(self, partition: int) -> int:
        # The last stable offset for a read-committed reader. A broker that stood still or was
        # restarted may have to be found again first.
        deadline = time.monotonic() + _TIMEOUT_S
        asked = TopicPartition(self.topic, partition)
        while True:
            try:
                _, end = self._consumer.get_watermark_offsets(asked, timeout=_TIMEOUT_S)
                return int(end)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _take(self, message: Any) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None:
            # The end may lie behind transaction markers, which are no records.
            assert error.code() == KafkaError._PARTITION_EOF, error
            self._next[partition] = max(self._next[partition], offset)
            return
        self._next[partition] = offset + 1
        self.records.append(
            Record(
                partition,
                offset,
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
                message.timestamp()[1],
            )
        )

    def close(self) -> None:
        self._consumer.close()
