"""Two transactional producers of one slot that take turns (decision 3, rule 4).

After a commit the broker still writes its markers, and a producer that begins meanwhile waits 20 ms
and more (KIP-447's coordinator answers CONCURRENT_TRANSACTIONS); another one need not. They never
overlap: one begins only after the commit of the other has returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from streams.config import Settings
from streams.kafka import TopicPartition
from streams.runtime.delivery import OutRecord
from streams.runtime.transaction import Transactor, Verdict

#: So long after its commit a producer is taken for busy with its markers.
_MARKERS_S: Final = 0.1


class Turns:
    """A `Transactor` that may begin right after its last commit. Used by one thread, as that is.

    Their ids are `member` and `member`b. A stage with little to commit has one producer: the second
    is made when it is first needed, and both ids of a predecessor are fenced by `open`.
    """

    def __init__(self, settings: Settings, member: str, stopping: Callable[[], bool]) -> None:
        self._both = (
            Transactor(settings, member, stopping),
            Transactor(settings, f"{member}b", stopping),
        )
        self._now = 0
        self._ended_at = 0.0

    @property
    def away(self) -> bool:
        """Whether Kafka does not answer."""
        return self._both[self._now].away

    @away.setter
    def away(self, value: bool) -> None:
        self._both[self._now].away = value

    def give_up_if_it_hangs(self) -> bool:
        """See `Transactor.give_up_if_it_hangs`; only one of them is ever in a call."""
        hangs = [each.give_up_if_it_hangs() for each in self._both]
        return any(hangs)

    def open(self) -> bool:
        """Fence whoever had our ids, end what was left open under them. False: stopped."""
        first, second = self._both
        opened = second.open() and first.open()
        second.close()
        self._now = 0
        return opened

    def close(self) -> None:
        for each in self._both:
            each.close()

    def commit(
        self, records: Iterable[OutRecord], offsets: list[TopicPartition], metadata: Any
    ) -> Verdict:
        """Write `records` and `offsets` in one transaction, by the producer whose turn it is."""
        if time.monotonic() - self._ended_at < _MARKERS_S:
            self._now = 1 - self._now
        try:
            return self._both[self._now].commit(records, offsets, metadata)
        finally:
            self._ended_at = time.monotonic()
