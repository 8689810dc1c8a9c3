"""Order per job: of the records with one key, one is in work and the others wait behind it."""

from __future__ import annotations

from collections import deque

from streams.runtime.delivery import Delivery


class Lanes:
    """Belongs to the event loop. A key has a lane from `enter` until its last `leave`."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[Delivery] | None] = {}
        #: Everything that is in work or waits: to be cancelled when its partition goes.
        self.active: set[Delivery] = set()

    def busy(self, key: bytes) -> bool:
        """Whether a record with this key is in work, so that another has to `wait`."""
        return key in self._waiting

    def enter(self, d: Delivery) -> None:
        """`d` is the first of its key in work."""
        self._waiting[d.key] = None
        self.active.add(d)

    def wait(self, d: Delivery) -> None:
        """`d` waits behind those of its key that came before."""
        lane = self._waiting[d.key]
        if lane is None:
            lane = self._waiting[d.key] = deque()
        self.active.add(d)
        lane.append(d)

    def leave(self, d: Delivery) -> Delivery | None:
        """`d` is no longer in work; the record of its key that comes next, if any waits."""
        self.active.discard(d)
        lane = self._waiting.get(d.key)
        if lane:
            return lane.popleft()
        self._waiting.pop(d.key, None)
        return None
