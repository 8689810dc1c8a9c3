"""Stand-ins for what surrounds the pure parts of the runtime: a consumed message, a commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from streams.offsets import encode_map
from streams.runtime.delivery import Delivery
from streams.runtime.tracker import Tracker

TOPIC_ID = UUID("0190a8f0-5d8e-7c3a-9b1e-2f6d4c8b7a10")


class FakeMessage:
    """A consumed record, as the driver gives it."""

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        offset: int = 0,
        timestamp_ms: int = 1_700_000_000_000,
    ) -> None:
        self._value, self._key, self._headers = value, key, headers
        self._offset, self._timestamp_ms = offset, timestamp_ms

    def topic(self) -> str:
        return "mail.classify"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (1, self._timestamp_ms)

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


def make_tracker(partition: int = 0) -> Tracker:
    return Tracker(
        topic="mail.classify",
        topic_id=TOPIC_ID,
        partition=partition,
        head=0,
        metadata=encode_map(TOPIC_ID, 0, []),
        finished=[],
    )


def delivery(tracker: Tracker, message: FakeMessage) -> Delivery:
    number = tracker.deliver(message.offset())
    assert number is not None
    return Delivery(message, tracker, number, 1_700_000_000_500_000)


class RecordedCommits:
    """Takes what is finished, in order, instead of a group commit."""

    def __init__(self) -> None:
        self.added: list[Delivery] = []
        self.write: Callable[[Delivery], Sequence[Any]] = lambda _: ()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        self.added.extend(deliveries)

    def states(self) -> list[dict[str, Any]]:
        import orjson

        return [orjson.loads(r[0][2]) for r in map(self.write, self.added) if r]


class OpenGate:
    """Lets every record run."""

    waits = None

    @staticmethod
    async def screen(_: Sequence[Delivery]) -> list[Delivery]:
        return []

    @staticmethod
    def is_suspect(_: Delivery) -> bool:
        return False


class NoEffects:
    async def run(self, call: Any) -> Any:
        raise AssertionError(f"no effect was expected, but {call.key} came")
