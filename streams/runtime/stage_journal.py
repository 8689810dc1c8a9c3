"""One stage's part of the journal (see `journal`): write down, start, run alone, take out again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

import structlog

from schemas.state import JobError
from streams.errors import BadWorld
from streams.kafka import TopicFacts
from streams.runtime.delivery import Delivery
from streams.runtime.journal import Journal
from streams.runtime.journal_rows import Place, Started, place
from streams.runtime.ownership import Ownership
from streams.runtime.records import job_error

log = structlog.get_logger(__name__)
T = TypeVar("T")

KILLS_WORKER: Final = "kills_worker"
_PAUSE_S: Final = 0.5

Start = Callable[[Delivery], None]
Bury = Callable[[Delivery, JobError], None]


class StageJournal:
    """Of one stage in one process. `limit`: `Settings.max_deliveries`."""

    def __init__(
        self, journal: Journal, stage: str, topic: TopicFacts, ownership: Ownership, limit: int
    ) -> None:
        # The group of a stage has the name of its topic.
        self._rows = journal.join(self, topic.name, topic.topic_id)
        self._journal, self._stage = journal, stage
        self._ownership, self._max_deliveries = ownership, limit
        self._loop = asyncio.get_running_loop()
        self.open: set[Delivery] = set()
        self._settled: list[Delivery] = []
        self._undone: list[Delivery] = []
        self._flushing: asyncio.Task[None] | None = None
        self._stopping = False
        #: Why nothing starts, or None.
        self.paused: str | None = None

    @property
    def on(self) -> bool:
        return self._journal.on

    def stop(self) -> None:
        """Write nothing more down: what has not started will not start."""
        self._stopping = True

    async def take(self, batch: Sequence[Delivery], size: int, start: Start, bury: Bury) -> None:
        """Write `batch` down and `start` it, at most `size` in work at a time.

        `bury` gets those that killed too often. Both must lead to a release. After a crash: what
        was started and not committed has a row, what was not started has none.
        """
        rest = deque(batch)
        while rest and not self._stopping:
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
