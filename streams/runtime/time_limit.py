"""The time-out of a stage's handlers: one timer for all of them, since all have the same limit.

`asyncio.timeout` would put one timer per run into the loop's heap and cancel nearly all of them.
"""

from __future__ import annotations

import asyncio

from streams.runtime.delivery import Delivery


class TimeLimit:
    """Cancels the task of a delivery whose run has lasted `limit_s`. Belongs to the event loop."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        #: Runs under way by their start, oldest first.
        self._started: dict[Delivery, float] = {}
        self._overdue: set[Delivery] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, d: Delivery) -> None:
        """A run of `d` begins; `d.task` is its task."""
        loop = asyncio.get_running_loop()
        self._started[d] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s, self._sweep)

    def end(self, d: Delivery) -> bool:
        """The run of `d` is over. True if it was cancelled for its time-out."""
        self._started.pop(d, None)
        if d in self._overdue:
            self._overdue.discard(d)
            return True
        return False

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() - self._limit_s
        self._timer = None
        for d, started in list(self._started.items()):
            if started > due:
                self._timer = loop.call_at(started + self._limit_s, self._sweep)
                break
            self._started.pop(d)
            if d.task is not None:
                self._overdue.add(d)
                d.task.cancel()
