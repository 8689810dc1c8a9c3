"""An event loop in a thread of its own, with connections of its own.

A worker's event loop runs handlers: between two of its turns a tenth of a second may pass, and a
transaction in Postgres takes a dozen turns, in which it holds its locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, Final, TypeVar

from streams.config import Settings
from streams.postgres import Pool, open_pool

T = TypeVar("T")

_CONNECTIONS: Final = 2
_END_S: Final = 5.0


class SideLoop:
    """`await start()`, then `run`, then `await stop()`; all from the worker's event loop."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self.pool: Pool = open_pool(settings, max_size=_CONNECTIONS)

    async def start(self) -> None:
        """Start the thread; connections are made when they are first needed."""
        self._thread.start()
        await self.run(self.pool.open())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work`, which may use `pool`, returns or raises."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self) -> None:
        """Close the connections, end the thread."""
        if self._thread.is_alive():
            await self.run(self.pool.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join, _END_S)
        if not self._thread.is_alive():
            self._loop.close()
