"""One worker process, until it is told to stop or cannot go on."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer

import structlog
import uvloop

from streams.config import Settings
from streams.crashpoints import arm
from streams.errors import BadSetup, BadWorld, Fenced
from streams.flow import Flow
from streams.runtime.app import HandoffApp, faust_app

log = structlog.get_logger(__name__)

#: How long a stopped worker waits for what does not let itself be cancelled.
_CLOSE_S = 3.0
#: Exit codes, as in `handoff worker --help`.
STOPPED, CRASHED, SETUP, WORLD, FENCED = 0, 1, 2, 3, 4


def run_worker(flow: Flow, stages: Sequence[str], settings: Settings) -> int:
    """Run `stages` of `flow` (all, and the projector, when empty) in this process; an exit code.

    SIGTERM and SIGINT stop it gracefully: finished work is committed, running handlers get
    `grace_s`, the rest is released for the next owner. After SIGKILL the same slot goes on at once.
    """
    arm(settings.crash_point)
    _calm_garbage_collector()
    app = faust_app(flow, stages, settings)
    # uvloop: timers, tasks and sockets cost a third of asyncio's own.
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    runner.run(_serve(app))
    code = _exit_code(app.failure)
    # Closing waits for each task and thread, also for a handler that swallows its cancellation.
    with _or_leave(_CLOSE_S, code):
        runner.close()
    return code


@contextmanager
def _or_leave(limit_s: float, code: int) -> Iterator[None]:
    """End the process with `code` should the block outlast `limit_s`: all that is finished is
    committed by then, and what still runs is released for the next owner."""

    def leave() -> None:
        log.warning("left_running", why=f"some handlers did not end within {limit_s} s")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = Timer(limit_s, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _calm_garbage_collector() -> None:
    """Records in flight are many and free of cycles: collecting them over and over costs a third
    of the hot path. What was imported never becomes garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _serve(app: HandoffApp) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        await app.start()
        waiters = [asyncio.ensure_future(w) for w in (told.wait(), app.wait_until_stopped())]
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiters:
            waiter.cancel()
    except (BadSetup, BadWorld, Fenced) as e:
        app.failure = app.failure or e
        log.error("worker_stops", why=e.message)
    finally:
        await app.stop()


def _exit_code(failure: BaseException | None) -> int:
    match failure:
        case None:
            return STOPPED
        case BadSetup():
            return SETUP
        case BadWorld():
            return WORLD
        case Fenced():
            return FENCED
        case _:
            return CRASHED
