"""One worker process, until it is told to stop or cannot go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
import uvloop

from streams.config import Settings
from streams.crashpoints import arm
from streams.errors import BadSetup, BadWorld, Fenced
from streams.flow import Flow
from streams.runtime import memory
from streams.runtime.app import HandoffApp, faust_app
from streams.runtime.ending import Ending

log = structlog.get_logger(__name__)

#: Exit codes, as in `handoff worker --help`.
STOPPED, CRASHED, SETUP, WORLD, FENCED = 0, 1, 2, 3, 4


def run_worker(flow: Flow, stages: Sequence[str], settings: Settings) -> int:
    """Run `stages` of `flow` (all, projector and timers, when empty) in this process; an exit code.

    SIGTERM and SIGINT stop it gracefully: finished work is committed, running handlers get
    `grace_s`, the rest is released for the next owner. After SIGKILL the same slot goes on at once.
    """
    arm(settings.crash_point)
    memory.calm()
    app = faust_app(flow, stages, settings)
    # uvloop: timers, tasks and sockets cost a third of asyncio's own.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app))
    return _exit_code(app.failure)


async def _serve(app: HandoffApp) -> None:
    parts = app.feeds.parts
    ending = Ending(parts.settings, parts.vitals, CRASHED)
    told = asyncio.ensure_future(ending.told.wait())
    life = asyncio.ensure_future(_live(app))
    collector = asyncio.ensure_future(memory.collect())
    try:
        await asyncio.wait((told, life), return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
    except (BadSetup, BadWorld, Fenced) as e:
        app.failure = app.failure or e
        log.error("worker_stops", why=e.message)
    except BaseException as e:
        # KeyboardInterrupt and the like went through the event loop, which cancels us: signals end
        # a worker in another way, so this may be a record's deed. Its start must count.
        app.failure = app.failure or e
        raise
    finally:
        ending.begin()
        for task in (told, life, collector):
            task.cancel()
        await app.stop()
        ending.last_call(_exit_code(app.failure))


async def _live(app: HandoffApp) -> None:
    await app.start()
    await app.wait_until_stopped()


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
