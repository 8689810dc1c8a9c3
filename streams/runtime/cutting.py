"""The grace of running handlers whose jobs are cancelled, after which their tasks are."""

from __future__ import annotations

import asyncio

from streams.runtime.delivery import Delivery


class Cutter:
    """Cancels the task of a delivery `grace_s` after `start`, unless it `end`s before. Belongs to
    the event loop."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._timers: dict[Delivery, asyncio.TimerHandle] = {}
        self._cut: set[Delivery] = set()

    def start(self, d: Delivery) -> None:
        """The job of `d`, whose run is under way, is cancelled."""
        if d not in self._timers and d not in self._cut:
            loop = asyncio.get_running_loop()
            self._timers[d] = loop.call_later(self._grace_s, self._over, d)

    def end(self, d: Delivery) -> bool:
        """The run of `d` is over. True if it was cut off."""
        if not self._timers and not self._cut:
            return False
        timer = self._timers.pop(d, None)
        if timer is not None:
            timer.cancel()
        if d in self._cut:
            self._cut.discard(d)
            return True
        return False

    def _over(self, d: Delivery) -> None:
        self._timers.pop(d, None)
        if d.task is not None:
            self._cut.add(d)
            d.task.cancel()
