"""One record as it lies in its topic, for agents that keep what they read in Postgres. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`timestamp_ms` is Kafka's; the topic's UUID tells it from a namesake made later."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def reject_row(self, reason: str) -> dict[str, object]:
        """The record complete, and why it was rejected: a row of a table of rejects."""
        return {
            "topic_id": self.topic_id,
            "partition": self.partition,
            "offset": self.offset,
            "topic": self.topic,
            "timestamp_ms": self.timestamp_ms,
            "key": self.key,
            "value": self.value,
            "reason": reason,
        }
