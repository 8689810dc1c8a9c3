"""One stage's part of the journal (see `journal`): write down, start, run alone, take out again."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

import structlog

from schemas.state import JobError, job_error
from streams.errors import BadWorld
from streams.kafka import TopicFacts
from streams.runtime.delivery import Delivery
from streams.runtime.journal import Journal
from streams.runtime.journal_rows import Place, Started, place
from streams.runtime.ownership import Ownership

log = structlog.get_logger(__name__)
T = TypeVar("T")

KILLS_WORKER: Final = "kills_worker"
_PAUSE_S: Final = 0.5

#: How long new starts are held back, at first, for what runs to end.
_FIRST_PATIENCE_S: Final = 1.0

#: A delivery, and what an earlier life had to do with it, if it had.
Aside = tuple[Delivery, Started | None]
Start = Callable[[Delivery], None]
Bury = Callable[[Delivery, JobError], None]


class StageJournal:
    """Of one stage in one process. `limit`: `Settings.max_deliveries`."""

    def __init__(
        self,
        journal: Journal,
        stage: str,
        topic: TopicFacts,
        ownership: Ownership,
        limit: int,
        fail: Callable[[BaseException], None],
    ) -> None:
        # The group of a stage has the name of its topic.
        self._rows = journal.join(self, topic.name, topic.topic_id)
        self._journal, self._stage = journal, stage
        self._ownership, self._max_deliveries, self._fail = ownership, limit, fail
        self._loop = asyncio.get_running_loop()
        self.open: set[Delivery] = set()
        #: Not started yet: died once; died more often; and where the jobs of both are.
        self._again: deque[Aside] = deque()
        self._alone: deque[Aside] = deque()
        self._aside: dict[bytes, deque[Aside]] = {}
        #: Of `open`: those that died before.
        self._retried: set[Delivery] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._settled: list[Delivery] = []
        self._undone: list[Delivery] = []
        self._flushing: asyncio.Task[None] | None = None
        self._stopping = False
        self._spawned: set[asyncio.Task[None]] = set()
        #: Why nothing starts, or None.
        self.paused: str | None = None

    @property
    def on(self) -> bool:
        return self._journal.on

    def stop(self) -> None:
        """Write nothing more down: what has not started will not start."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()

    async def take(self, batch: Sequence[Delivery], size: int, start: Start, bury: Bury) -> None:
        """Write `batch` down and `start` it, `size` (and a few that died once) at a time.

        What an earlier life has started is put aside, with later records of its jobs. `bury` gets
        those that killed too often. Both must lead to a release. After a crash: what was started
        and not committed has a row, what was not started has none.
        """
        rest = deque(batch)
        while rest and not self._stopping:
            await self._journal.wait_until(lambda: len(self.open) < size)
            chunk = [rest.popleft() for _ in range(min(size - len(self.open), len(rest)))]
            async with self._journal.door:
                known = await self._persist(partial(self._rows.look_or_begin, chunk))
                if not known and not self._aside:
                    self.open.update(chunk)
            if known or self._aside:
                chunk = self._put_aside(chunk, known)
                self._work_off(again_limit(size), start, bury)
                await self._begin(chunk)
            for d in chunk:
                start(d)
                # An inline handler may take its time; others, and the watchdog, want the loop.
                await asyncio.sleep(0)

    async def _begin(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            async with self._journal.door:
                await self._persist(lambda: self._rows.begin(deliveries))
                self.open.update(deliveries)

    def make_way(self, d: Delivery) -> None:
        """`d` does not start yet: its limits hold it back. Others may have its place; one that died
        before keeps it, and with it the care that is taken of it."""
        if d in self.open and d not in self._retried:
            self._let_go([d])

    async def begin_soon(self, deliveries: Sequence[Delivery], timeout_s: float) -> bool:
        """Write down that those start which had made way. False: one runs alone for longer than
        `timeout_s`, and nothing was written."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._journal.door.acquire()
        except TimeoutError:
            return False
        try:
            # An earlier row of one of them must not go after the new one has come.
            await self._persist(self.finish)
            await self._persist(lambda: self._rows.begin(deliveries))
            self.open.update(deliveries)
        finally:
            self._journal.door.release()
        return True

    # -- what was started before -------------------------------------------------------------

    def _put_aside(
        self, chunk: Sequence[Delivery], known: Mapping[Place, Started]
    ) -> list[Delivery]:
        """Put aside what an earlier life has started, and what must come after it; the others."""
        others = []
        for d in chunk:
            before = known.get(place(d))
            if d.key in self._aside:
                queue = self._aside[d.key]
            elif before is not None:
                queue = self._alone if before.starts > 1 else self._again
                self._aside[d.key] = queue
            else:
                others.append(d)
                continue
            queue.append((d, before))
        return others

    def _next(self, queue: deque[Aside]) -> Aside:
        d, before = queue.popleft()
        if all(other.key != d.key for other, _ in queue):
            del self._aside[d.key]
        return d, before

    def _work_off(self, limit: int, start: Start, bury: Bury) -> None:
        """See to it that what was put aside is brought to its end."""
        for n, (queue, work) in enumerate(
            (
                (self._again, partial(self._run_again, limit, start)),
                (self._alone, partial(self._run_alone, start, bury)),
            )
        ):
            if queue and ((task := self._tasks.get(n)) is None or task.done()):
                self._tasks[n] = self._loop.create_task(self._guarded(work))

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` in a task of its own; a fault ends the worker."""
        task = self._loop.create_task(self._guarded(work))
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as e:
            self._fail(e)

    async def _run_again(self, limit: int, start: Start) -> None:
        """What died in company runs in company again, at most `limit` at a time."""
        while self._again and not self._stopping:
            await self._journal.wait_until(lambda: len(self._retried) < limit)
            count = min(limit - len(self._retried), len(self._again))
            chosen = [self._next(self._again)[0] for _ in range(count)]
            self._retried.update(chosen)
            await self._begin(chosen)
            for d in chosen:
                start(d)
                await asyncio.sleep(0)

    async def _run_alone(self, start: Start, bury: Bury) -> None:
        """What died twice runs while nothing else runs in this process."""
        patience_s = _FIRST_PATIENCE_S
        while self._alone and not self._stopping:
            d, before = self._alone[0]
            if before is not None and before.starts >= self._max_deliveries:
                log.error("kills_worker", stage=self._stage, job=d.job_id, starts=before.starts)
                self._next(self._alone)
                self.open.add(d)
                d.attempt = before.starts
                bury(d, _killer(d, self._stage, before))
            elif await self._found_quiet(patience_s, start):
                patience_s = _FIRST_PATIENCE_S
            else:
                # Long handlers: others go on for as long as they were kept waiting.
                await asyncio.sleep(patience_s)
                patience_s *= 2

    async def _found_quiet(self, patience_s: float, start: Start) -> bool:
        """Run the next one alone. False: others would not end in time."""
        async with self._journal.door:
            try:
                async with asyncio.timeout(patience_s):
                    await self._journal.wait_until(lambda: self._journal.quiet)
            except TimeoutError:
                return False
            d, _ = self._next(self._alone)
            log.warning("runs_alone", stage=self._stage, job=d.job_id)
            await self._persist(lambda: self._rows.begin([d]))
            self.open.add(d)
            self._retried.add(d)
            start(d)
            # Until it is committed: the next death must not be laid at its door.
            await self._journal.wait_until(lambda: self._journal.quiet)
        return True

    def released(self, deliveries: Sequence[Delivery]) -> None:
        """Called from any thread with whatever the stage lets go: committed, or given up."""
        if self.open or self._journal.on:
            self._loop.call_soon_threadsafe(self._let_go, deliveries)

    def _let_go(self, deliveries: Sequence[Delivery]) -> None:
        for d in self.open.intersection(deliveries):
            self.open.discard(d)
            self._retried.discard(d)
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


def again_limit(size: int) -> int:
    """How many that died once may be in work at a time: so many run alone after the next death."""
    return math.isqrt(size - 1) + 1


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
