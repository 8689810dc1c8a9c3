"""The pause of a stage that met a bad world: nothing starts until it is over, then one probe alone.

A probe that does not meet the bad world again reopens the stage. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from streams.retry import Backoff
from streams.runtime.delivery import Delivery

log = structlog.get_logger(__name__)

#: Pauses between probes, where the other side does not say how long: a recovery is soon seen, and
#: one probe costs it nothing.
BETWEEN_PROBES: Final = Backoff(attempts=2**31, limit=timedelta(seconds=5))
#: Of a record that fails though the world has just been seen to be well: it holds up the others by
#: its pauses, so it comes ever more rarely.
_DOUBTED: Final = Backoff(attempts=2**31, first=timedelta(seconds=1), limit=timedelta(minutes=1))
#: A longer Retry-After is probed after so long all the same: it may be a slip.
_LONGEST_S: Final = 3_600.0
#: A pause is said once in so long, not for each probe.
_SAY_EVERY_S: Final = 5.0


class Pause:
    """`reason` is why nothing starts, None while the stage is open; `until` when the pause is over.

    `wake` is called when it is over: then `may_start` lets one delivery through, the `probe`.
    """

    def __init__(self, stage: str, wake: Callable[[], None], rng: random.Random) -> None:
        self._stage, self._wake, self._rng = stage, wake, rng
        self.reason: str | None = None
        self.until: datetime | None = None
        #: The run that decides; None while nothing runs for that purpose.
        self.probe: Delivery | None = None
        #: How often a probe has reopened the stage.
        self._opened = 0
        self._failures = 0
        self._ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._said_at = -_SAY_EVERY_S

    def failed(self, d: Delivery, reason: str, after_s: float | None) -> float:
        """A run of `d` met a bad world. Seconds that `d` waits on top of the pause.

        It begins a pause, or another one if `d` was the probe. A run that began before the pause
        says nothing new but a longer `after_s`.
        """
        if self.reason is None or self.probe is d:
            self._failures += 1
            self.probe = None
            self._extend(after_s if after_s is not None else self._between(), reason)
        elif after_s is not None:
            self._extend(after_s, reason)
        return self._doubt(d)

    def may_start(self, d: Delivery) -> bool:
        """Whether `d` may run now. During a pause the first one to hear yes is the probe."""
        if self.reason is None:
            return True
        if self.probe is not None or asyncio.get_running_loop().time() < self._ends_at:
            return False
        self.probe = d
        return True

    def passed(self, d: Delivery) -> None:
        """A run of `d` did not meet a bad world: if it was the probe, the stage is open."""
        if self.probe is d:
            log.info("stage_resumed", stage=self._stage, job=d.job_id, was=self.reason)
            self.reason = self.until = self.probe = None
            self._opened += 1
            self._failures = 0
            self._said_at = -_SAY_EVERY_S

    def dropped(self, d: Delivery) -> None:
        """`d` runs no more, its partition is gone: if it was the probe, another one is needed."""
        if self.probe is d:
            self.probe = None
            asyncio.get_running_loop().call_soon(self._wake)

    def close(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _between(self) -> float:
        return BETWEEN_PROBES.wait_seconds(self._failures, self._rng) or 0.0

    def _extend(self, wait_s: float, reason: str) -> None:
        loop = asyncio.get_running_loop()
        wait_s = min(max(wait_s, 0.0), _LONGEST_S)
        if self.reason is None or loop.time() + wait_s > self._ends_at:
            self._ends_at = loop.time() + wait_s
            self.until = datetime.now(UTC) + timedelta(seconds=wait_s)
            self.close()
            self._timer = loop.call_at(self._ends_at, self._over)
        self.reason = reason
        if loop.time() - self._said_at >= _SAY_EVERY_S:
            self._said_at = loop.time()
            log.warning("stage_paused", stage=self._stage, why=reason, wait_s=round(wait_s, 3))

    def _over(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._ends_at:
            # Timers may come a hair early.
            self._timer = loop.call_later(0.001, self._over)
        else:
            self._timer = None
            self._wake()

    def _doubt(self, d: Delivery) -> float:
        """0, unless others passed between two failures of `d`: perhaps it is not the world."""
        if 0 <= d.world_seen < self._opened:
            d.doubts += 1
        d.world_seen = self._opened
        return (_DOUBTED.wait_seconds(d.doubts, self._rng) or 0.0) if d.doubts else 0.0
