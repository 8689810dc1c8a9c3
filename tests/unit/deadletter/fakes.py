"""Makes dead letters: records as the driver gives them, and letters that were read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from schemas import headers as h
from streams.deadletter.letters import Header, Letter, read_letter
from streams.names import Names

TOPIC_ID = UUID("0190a8f0-5d8e-7c3a-9b1e-2f6d4c8b7a10")
JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
NAMES = Names("")


class FakeRecord:
    """A consumed record."""

    def __init__(
        self,
        headers: list[Header] | None,
        *,
        topic: str = "mail.act.dlq",
        key: bytes | None = JOB.encode(),
        value: bytes | None = b'{"n": 1}',
        partition: int = 1,
        offset: int = 17,
        timestamp_ms: int = 1_760_000_100_000,
    ) -> None:
        self._headers, self._topic, self._key, self._value = headers, topic, key, value
        self._partition, self._offset, self._timestamp_ms = partition, offset, timestamp_ms

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (1, self._timestamp_ms)

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


def told(**changes: str) -> list[Header]:
    """What a stage adds to a record that failed; `changes` by the last part of a header's name."""
    facts = {
        h.DLQ_TOPIC: "mail.act",
        h.DLQ_PARTITION: "2",
        h.DLQ_OFFSET: "41",
        h.DLQ_GROUP: "mail.act",
        h.DLQ_DELIVERY_COUNT: "5",
        h.DLQ_MESSAGE: "Stage act failed 5 times: ValueError: no",
        h.DLQ_ERROR: "handler_failed",
        h.DLQ_STAGE: "act",
        h.DLQ_JOB: JOB,
        h.DLQ_SEQ: "2",
        h.DLQ_TIMESTAMP: "1760000000123",
    }
    short = {n.replace("handoff_dlq_", "").replace("__dlq.errors.", ""): n for n in facts}
    facts |= {short[name]: value for name, value in changes.items()}
    return [(name, value.encode()) for name, value in facts.items()]


def letter(headers: list[Header] | None = None, *, names: Names = NAMES, **changes: Any) -> Letter:
    """A letter of a stage; record fields (`topic`, `key`, `value`, …) and told facts by name."""
    fields = {"topic", "key", "value", "partition", "offset", "timestamp_ms"}
    record = {k: v for k, v in changes.items() if k in fields}
    facts = {k: v for k, v in changes.items() if k not in fields}
    return read_letter(FakeRecord([*(headers or []), *told(**facts)], **record), TOPIC_ID, names)
