"""Records that kill (decision 9): after an unclean end, starts are written down before they happen.

A record whose handler ends the process leaves no word. So each process has a row in `workers`; if
one of a stage's processes died without ending its row, the next ones *journal*: the coordinates of
records are in Postgres before their handlers start. What an earlier life had started runs *alone*,
in the whole process, until it is committed, so that a further death blames one record. A record
that was started `max_deliveries` times, each time with a death, is dead-lettered without being run.

After a clean end a process pays one row, and nothing for each record. While Postgres is away no
handler starts: nothing is guessed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog

from schemas.state import JobError
from streams.config import Settings
from streams.errors import BadWorld
from streams.postgres import Pool
from streams.runtime.delivery import Delivery
from streams.runtime.journal_rows import JournalRows, Place, Presence, Started, place
from streams.runtime.ownership import Ownership
from streams.runtime.records import job_error

log = structlog.get_logger(__name__)
T = TypeVar("T")

KILLS_WORKER = "kills_worker"
_PAUSE_S = 0.5
#: What a clean end may take to be written; a row without it costs the next life a journal.
_LEAVE_S = 2.0

Start = Callable[[Delivery], None]
Bury = Callable[[Delivery, JobError], None]


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
        self._stages: list[StageJournal] = []
        self._presence: Presence | None = None
        self._beats: asyncio.Task[None] | None = None
        self._freed = asyncio.Event()

    async def open(self, groups: Iterable[str]) -> None:
        """Begin a life as a worker of these groups. Raises `BadWorld`, `BadSetup`."""
        if not (wanted := list(groups)):
            return
        self._presence = Presence(self._pool, self._settings, self._incarnation, wanted)
        self._switch(await self._presence.enter())
        self._beats = asyncio.create_task(self._beat(self._presence))

    def stage(self, name: str, group: str, topic_id: UUID, ownership: Ownership) -> StageJournal:
        """The part of one stage."""
        rows = JournalRows(self._pool, self._settings, self._incarnation, group, topic_id)
        made = StageJournal(self, rows, name, ownership, self._settings.max_deliveries)
        self._stages.append(made)
        return made

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
            async with asyncio.timeout(_LEAVE_S):
                for each in self._stages:
                    await each.finish()
                await self._presence.leave(_LEAVE_S)
        except (BadWorld, TimeoutError) as e:
            log.warning("end_not_written", why=str(e))

    async def _beat(self, presence: Presence) -> None:
        while True:
            await asyncio.sleep(self._settings.worker_lost_s / 6)
            try:
                self._switch(await presence.beat())
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


class StageJournal:
    """The journal of one stage in one process."""

    def __init__(
        self,
        journal: Journal,
        rows: JournalRows,
        stage: str,
        ownership: Ownership,
        max_deliveries: int,
    ) -> None:
        self._journal, self._rows, self._stage = journal, rows, stage
        self._ownership, self._max_deliveries = ownership, max_deliveries
        self._loop = asyncio.get_running_loop()
        #: Written down and neither committed nor given up.
        self.open: set[Delivery] = set()
        self._settled: list[Delivery] = []
        self._undone: list[Delivery] = []
        self._flushing: asyncio.Task[None] | None = None
        #: Why nothing starts, or None.
        self.paused: str | None = None

    @property
    def on(self) -> bool:
        return self._journal.on

    async def take(self, batch: Sequence[Delivery], size: int, start: Start, bury: Bury) -> None:
        """Write `batch` down and `start` it, at most `size` in work at a time.

        `bury` gets those that killed too often. Both must lead to a release. After a crash: what
        was started and not committed has a row, what was not started has none.
        """
        rest = deque(batch)
        while rest:
            await self._journal.wait_until(lambda: len(self.open) < size)
            chunk = [rest.popleft() for _ in range(min(size - len(self.open), len(rest)))]
            async with self._journal.door:
                known = await self._persist(partial(self._rows.look_or_begin, chunk))
                if not known:
                    self.open.update(chunk)
            if known:
                chunk = await self._take_known(chunk, known, start, bury)
            for d in chunk:
                start(d)
                # An inline handler may take its time; others, and the watchdog, want the loop.
                await asyncio.sleep(0)

    async def _take_known(
        self,
        chunk: Sequence[Delivery],
        known: Mapping[Place, Started],
        start: Start,
        bury: Bury,
    ) -> list[Delivery]:
        """Run what is known alone, with the other records of its jobs, in order; the rest is
        written down and returned."""
        jobs = {d.key for d in chunk if place(d) in known}
        for d in chunk:
            if d.key in jobs:
                await self._run_alone(d, known.get(place(d)), start, bury)
        others = [d for d in chunk if d.key not in jobs]
        if others:
            async with self._journal.door:
                await self._persist(lambda: self._rows.begin(others))
                self.open.update(others)
        return others

    async def _run_alone(
        self, d: Delivery, before: Started | None, start: Start, bury: Bury
    ) -> None:
        async with self._journal.door:
            await self._journal.wait_until(lambda: self._journal.quiet)
            if before is not None and before.starts >= self._max_deliveries:
                log.error("kills_worker", stage=self._stage, job=d.job_id, starts=before.starts)
                self.open.add(d)
                d.attempt = before.starts
                bury(d, _killer(d, self._stage, before))
            else:
                if before is not None:
                    log.warning("runs_alone", stage=self._stage, job=d.job_id, starts=before.starts)
                await self._persist(lambda: self._rows.begin([d]))
                self.open.add(d)
                start(d)
            # Until it is committed: the next death must not be laid at its door.
            await self._journal.wait_until(lambda: self._journal.quiet)

    def released(self, deliveries: Sequence[Delivery]) -> None:
        """Called from any thread with whatever the stage lets go: committed, or given up."""
        if self.open or self._journal.on:
            self._loop.call_soon_threadsafe(self._let_go, deliveries)

    def _let_go(self, deliveries: Sequence[Delivery]) -> None:
        for d in self.open.intersection(deliveries):
            self.open.discard(d)
            finished = d.result is not None or d.message.value() is None
            (self._settled if finished and d.tracker.live else self._undone).append(d)
        self._journal.freed()
        if (self._settled or self._undone) and self._flushing is None:
            self._flushing = self._loop.create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        """What is released meanwhile goes with the next statement."""
        try:
            while self._settled or self._undone:
                try:
                    await self.flush()
                except BadWorld as e:
                    log.warning("journal_not_written", stage=self._stage, why=e.message)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._flushing = None

    async def flush(self) -> None:
        """Take the rows of what was released out. Raises `BadWorld`; it is kept for later."""
        settled, self._settled = self._settled, []
        undone, self._undone = self._undone, []
        try:
            if settled:
                await self._rows.settle(settled)
                settled = []
            if undone:
                await self._rows.undo(undone)
        except BadWorld:
            self._settled = settled + self._settled
            self._undone = undone + self._undone
            raise

    async def finish(self) -> None:
        """All that was released is written."""
        if self._flushing is not None:
            await self._flushing
        await self.flush()

    async def sweep(self) -> None:
        """Forget rows of records that cannot come again. Raises `BadWorld`."""
        with self._ownership.lock:
            heads = {p: t.head for p, t in self._ownership.trackers.items()}
        await self._rows.sweep(heads)

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await ask()
            except BadWorld as e:
                self.paused = f"no handler starts until it can be written down: {e.message}"
                log.warning("stage_paused", stage=self._stage, why=self.paused)
                await asyncio.sleep(_PAUSE_S)
            else:
                self.paused = None
                return answer


def _killer(d: Delivery, stage: str, before: Started) -> JobError:
    return job_error(
        KILLS_WORKER,
        f"The record at {d.place} was started {before.starts} times by stage {stage} after a "
        f"worker had died, and each time the process ended before it was finished: first at "
        f"{_moment(before.first_at)}, last at {_moment(before.last_at)}. It was not run again. "
        "Mend the handler or the record (the workers' logs of those moments say where they stood), "
        "then redrive it.",
    )


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
