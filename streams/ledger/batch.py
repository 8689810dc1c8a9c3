"""Many small requests, few round trips: what arrives while one is under way goes with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Batcher(Generic[Request, Reply]):
    """Hands requests to `work`, which returns one reply each, in order; one call at a time.

    An error of `work` is the answer to the whole batch. A request whose waiter is cancelled is done
    all the same: watch its future for the outcome.
    """

    def __init__(
        self, work: Callable[[Sequence[Request]], Awaitable[Sequence[Reply]]], limit: int
    ) -> None:
        self._work = work
        self._limit = limit
        self._waiting: list[tuple[Request, asyncio.Future[Reply]]] = []
        self._task: asyncio.Task[None] | None = None

    def submit(self, request: Request) -> asyncio.Future[Reply]:
        """Queue a request. Await the future through `asyncio.shield`: it is not yours alone."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        # An error that nobody waits for any more is no news for the loop's exception handler.
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._waiting.append((request, future))
        if self._task is None:
            # It serves many handlers, so it must not run in the context (the hop) of one.
            self._task = asyncio.create_task(self._run(), context=Context())
        return future

    async def drain(self) -> None:
        """Return when everything submitted has its answer."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting[: self._limit]
                del self._waiting[: self._limit]
                await self._answer(batch)
        finally:
            self._task = None

    async def _answer(self, batch: list[tuple[Request, asyncio.Future[Reply]]]) -> None:
        try:
            replies = await self._work([request for request, _ in batch])
        except Exception as e:
            for _, future in batch:
                if not future.done():
                    future.set_exception(e)
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), reply in zip(batch, replies, strict=True):
            if not future.done():
                future.set_result(reply)
