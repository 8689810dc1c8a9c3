"""A server of the tests: an event loop in a thread of its own, ended with all that runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

TIMEOUT_S = 60.0


class LoopThread:
    """`start`, then `run` and `call` from any other thread, then `close`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = Thread(target=self.loop.run_forever, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What `coroutine` returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_S)

    def call(self, do: Callable[[], T]) -> T:
        """What `do` returns, called in the loop."""

        async def called() -> T:
            return do()

        return self.run(called())

    def close(self, server: asyncio.Server) -> None:
        """End the server and every task, then the loop and its thread."""
        self.run(_end(server))
        self.stop()

    def stop(self) -> None:
        """End the loop, in which nothing runs any more, and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
