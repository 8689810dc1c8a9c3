"""What a worker's end counts as."""

from __future__ import annotations

import asyncio
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from streams.runtime import memory, worker


class App:
    """As much of the app as the end of a worker needs; it lives until something ends it."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.failure_at_stop: BaseException | None = None
        self.feeds = SimpleNamespace(parts=SimpleNamespace(settings=None, vitals=None))

    async def start(self) -> None:
        pass

    async def wait_until_stopped(self) -> None:
        await asyncio.sleep(3_600)

    async def stop(self) -> None:
        self.failure_at_stop = self.failure


class Ending:
    """A signal comes at once, or never; no process ends."""

    signalled = False

    def __init__(self, *_: Any) -> None:
        self.told = asyncio.Event()
        if self.signalled:
            self.told.set()

    def begin(self) -> None:
        pass

    @staticmethod
    def last_call(_: int) -> None:
        pass


def test_an_interrupt_through_the_event_loop_is_no_clean_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler may raise it. A clean end would take its record's start back, and the record would
    kill one worker after the other for ever."""
    monkeypatch.setattr(worker, "Ending", Ending)
    app = App()

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def interrupted() -> None:
        asyncio.get_running_loop().call_later(0.01, interrupt)
        await worker._serve(app)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt), asyncio.Runner() as runner:
        runner.run(interrupted())
    assert isinstance(app.failure_at_stop, asyncio.CancelledError)


def test_a_signal_is_a_clean_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "Ending", Ending)
    monkeypatch.setattr(Ending, "signalled", True)
    app = App()
    asyncio.run(worker._serve(app))  # type: ignore[arg-type]
    assert app.failure_at_stop is None


class Knot:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


async def test_cycles_are_freed_although_the_thresholds_are_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_COLLECT_EVERY_S", 0.01)
    knot = weakref.ref(Knot())
    assert knot() is not None
    collector = asyncio.ensure_future(memory.collect())
    async with asyncio.timeout(30):
        while knot() is not None:
            await asyncio.sleep(0.01)
    collector.cancel()
