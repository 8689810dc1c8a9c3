"""The bound on what a stage holds in memory: delivered and not yet released, records and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition

from streams.runtime.delivery import Delivery


class Budget:
    """Taken by the polling thread, given back after commit or drop; both wait on one condition.

    `released` is told, in the same thread, what is given back.
    """

    def __init__(
        self,
        max_records: int,
        max_bytes: int,
        released: Callable[[Sequence[Delivery]], None] = lambda _: None,
    ) -> None:
        self._released = released
        self._max_records, self._max_bytes = max_records, max_bytes
        self._changed = Condition()
        self.records = 0
        self.bytes = 0
        #: Those that hold more than their record.
        self._holding: set[Delivery] = set()

    def room(self) -> int:
        """How many records may be taken now; 0 when either bound is reached."""
        return 0 if self.bytes >= self._max_bytes else max(0, self._max_records - self.records)

    def take(self, deliveries: Sequence[Delivery]) -> None:
        size = _bytes(deliveries)
        with self._changed:
            self.records += len(deliveries)
            self.bytes += size

    def hold(self, d: Delivery) -> None:
        """`d` has come to hold `held_bytes` beside its record, until it is released."""
        with self._changed:
            self.bytes += d.held_bytes
            self._holding.add(d)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        size = _bytes(deliveries)
        with self._changed:
            if self._holding:
                let_go = self._holding.intersection(deliveries)
                self._holding -= let_go
                size += sum(d.held_bytes for d in let_go)
            self.records -= len(deliveries)
            self.bytes -= size
            self._changed.notify_all()
        self._released(deliveries)

    def wait_for_room(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.room() > 0, timeout_s)


def _bytes(deliveries: Sequence[Delivery]) -> int:
    return sum(len(d.message) for d in deliveries)
