"""Ends a process whose event loop hangs (decision 9).

`faulthandler` keeps a thread of C that needs no interpreter lock, so it also sees a loop inside a
call of C that never returns. It prints where each thread stands and exits with code 1.
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import time
from threading import Event, Thread
from typing import Final

import structlog

from streams.runtime.health import Vitals

log = structlog.get_logger(__name__)

_BEAT_S: Final = 0.5


class Watchdog:
    """Belongs to the event loop, which keeps `vitals.turned_at` up to date from `start` to `stop`.

    `limit_s` 0 ends nothing.
    """

    def __init__(self, limit_s: float, vitals: Vitals) -> None:
        self._limit_s, self._vitals = limit_s, vitals
        self._beat_s = min(_BEAT_S, limit_s / 8) if limit_s else _BEAT_S
        self._beats: asyncio.Task[None] | None = None
        self._ended = Event()
        self._observer = Thread(target=self._observe, name="watchdog", daemon=True)

    def start(self) -> None:
        # A crash in C code, too, then leaves a traceback.
        faulthandler.enable(sys.stderr)
        self._turned()
        self._beats = asyncio.get_running_loop().create_task(self._beat())
        if self._limit_s:
            self._observer.start()

    def stop(self) -> None:
        self._ended.set()
        if self._beats is not None:
            self._beats.cancel()
        faulthandler.cancel_dump_traceback_later()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            self._turned()

    def _turned(self) -> None:
        self._vitals.turned_at = time.monotonic()
        if self._limit_s:
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=sys.stderr)

    def _observe(self) -> None:
        """Says in the log, half-way, what is about to happen; C code that keeps the interpreter
        lock keeps this from us, and then only the traceback tells."""
        while not self._ended.wait(self._beat_s):
            hangs_s = time.monotonic() - self._vitals.turned_at
            if hangs_s > self._limit_s / 2:
                log.error(
                    "event_loop_hangs",
                    for_s=round(hangs_s, 1),
                    why=f"a handler or a call keeps the event loop; after {self._limit_s:g} s the "
                    'watchdog prints where each thread stands ("Timeout") and ends this process',
                )
                self._ended.wait(self._limit_s)
