"""Records that kill (decision 9): after an unclean end, starts are written down before they happen.

A record whose handler ends the process leaves no word. So each process has a row in `workers`; if
one of a stage's processes died without ending its row, the next ones *journal*: the coordinates of
records are in Postgres before their handlers start. What an earlier life had started is put aside:
after the first such death only a few of them are in work at a time, after the second each runs
*alone*, while nothing else runs in the process, until it is committed, so that a further death
blames one record. A record that was started `max_deliveries` times, each time with a death, is
dead-lettered without being run.

After a clean end a process pays one row, and nothing for each record. While Postgres is away no
handler starts: nothing is guessed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol
from uuid import UUID

import structlog

from streams.config import Settings
from streams.errors import BadWorld
from streams.postgres import Pool
from streams.runtime.account import Tell
from streams.runtime.delivery import Delivery
from streams.runtime.journal_rows import JournalRows, Presence

log = structlog.get_logger(__name__)

#: What a clean end may take to be written; a row without it costs the next life a journal.
_LEAVE_S: Final = 2.0


class Part(Protocol):
    """One stage's part of the journal, as the others need it."""

    #: Written down and neither committed nor given up.
    open: set[Delivery]

    async def finish(self) -> None:
        """All that was released is written. Raises `BadWorld`."""
        ...

    async def sweep(self) -> None:
        """Forget rows of records that cannot come again. Raises `BadWorld`."""
        ...


class Journal:
    """Of one process: whether it journals now, and the door through which journalled starts pass.

    `await open()` before the first record, `await close()` after the last. All methods belong to
    the event loop.
    """

    def __init__(self, pool: Pool, settings: Settings, incarnation: str) -> None:
        self._pool, self._settings, self._incarnation = pool, settings, incarnation
        self.on = False
        #: Held while records are written down, and for as long as a record runs alone.
        self.door = asyncio.Lock()
        self._stages: list[Part] = []
        self._presence: Presence | None = None
        self._beats: asyncio.Task[None] | None = None
        self._freed = asyncio.Event()

    async def open(self, stages: Mapping[str, Tell], others: Mapping[str, Tell]) -> None:
        """Begin a life as a worker of these groups: of stages, and of agents that run no handlers.

        Each tells with every sign of life how it is. Raises `BadWorld`, `BadSetup`.
        """
        if not (tell := {**stages, **others}):
            return
        self._presence = Presence(self._pool, self._settings, self._incarnation, stages, others)
        self._switch(await self._presence.enter())
        self._beats = asyncio.create_task(self._beat(self._presence, tell))

    def join(self, stage: Part, group: str, topic_id: UUID) -> JournalRows:
        """`stage` takes part; the rows of its deliveries."""
        self._stages.append(stage)
        return JournalRows(self._pool, self._settings, self._incarnation, group, topic_id)

    async def close(self, *, clean: bool) -> None:
        """The process ends. Unless `clean`, its row stays as that of a process that died."""
        if self._beats is None or self._presence is None:
            return
        self._beats.cancel()
        with suppress(asyncio.CancelledError):
            await self._beats
        if not clean:
            return
        try:
            # The door stays shut: what is started after this would look like a death.
            async with asyncio.timeout(_LEAVE_S):
                await self.door.acquire()
                for each in self._stages:
                    await each.finish()
                await self._presence.leave(_LEAVE_S)
        except (BadWorld, TimeoutError) as e:
            log.warning("end_not_written", why=str(e))

    async def _beat(self, presence: Presence, tell: Mapping[str, Tell]) -> None:
        while True:
            await asyncio.sleep(self._settings.worker_lost_s / 6)
            try:
                self._switch(await presence.beat({group: ask() for group, ask in tell.items()}))
                if self.on:
                    for each in self._stages:
                        await each.sweep()
            except BadWorld as e:
                # Until it is known again: as before.
                log.warning("presence_not_written", why=e.message)

    def _switch(self, on: bool) -> None:
        if on and not self.on:
            log.warning(
                "journal_on",
                why="a process of these stages ended without a word; until it is clear that no "
                "record kills, each is written down before it is started",
            )
        elif self.on and not on:
            log.info("journal_off", why="no process of these stages has died for a while")
        self.on = on

    def freed(self) -> None:
        self._freed.set()

    async def wait_until(self, fact: Callable[[], bool]) -> None:
        """Until `fact` holds; it is looked at whenever records are released."""
        while not fact():
            self._freed.clear()
            await self._freed.wait()

    @property
    def quiet(self) -> bool:
        """Whether nothing that was written down is in work, in any stage."""
        return not any(s.open for s in self._stages)
