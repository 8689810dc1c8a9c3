"""The end of a worker process: on a signal, in time, whatever its handlers do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from threading import Lock, Thread
from types import FrameType

import structlog

from streams.config import Settings
from streams.runtime.health import Vitals

log = structlog.get_logger(__name__)

#: On top of the grace: cancelled handlers, closing clients.
_MARGIN_S = 1.0
#: What is left after the stop (threads that a handler started) may take to end by itself.
_LAST_CALL_S = 1.0


class Ending:
    """`told` is set by SIGTERM or SIGINT; a second one changes nothing.

    From then on the process ends within `grace_s` and a second or two: commits of what is finished
    may take up to `commit_timeout_s` more, when Kafka is slow or away. An event loop that a handler
    blocks for all of the grace cannot stop in order; the process is then ended like one that died:
    nothing unfinished is ever committed. Belongs to the event loop of the main thread.
    """

    def __init__(self, settings: Settings, vitals: Vitals, overdue_code: int) -> None:
        self.told = asyncio.Event()
        self._settings, self._vitals, self._code = settings, vitals, overdue_code
        self._loop = asyncio.get_running_loop()
        #: Held for good once the stop has begun; a signal may come in the middle of `begin`.
        self._began = Lock()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not the event loop's own: a handler may block that, and then nobody would count.
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.told.set)
        self.begin()

    def begin(self) -> None:
        """The stop begins, if it has not yet: time runs."""
        if self._began.acquire(blocking=False):
            Thread(target=self._watch, args=(time.monotonic(),), daemon=True).start()

    def _watch(self, began_at: float) -> None:
        handlers_s = self._settings.grace_s + _MARGIN_S
        time.sleep(handlers_s)
        if self._vitals.turned_at < began_at:
            self._leave("a handler has blocked the event loop for all of the grace")
        time.sleep(self._settings.stop_s - handlers_s)
        self._leave("it did not stop in time")

    def _leave(self, why: str) -> None:
        log.error("stop_overdue", why=why, grace_s=self._settings.grace_s)
        os._exit(self._code)

    @staticmethod
    def last_call(code: int) -> None:
        """The stop is over. Threads that nobody ends must not keep the process."""

        def leave() -> None:
            time.sleep(_LAST_CALL_S)
            os._exit(code)

        Thread(target=leave, name="last call", daemon=True).start()
