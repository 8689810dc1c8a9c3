"""Group commit: what is finished becomes one Kafka transaction, again and again (decision 3).

One thread per stage. Batches adapt by themselves: while a commit is under way the next one fills.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from threading import Condition, Thread

import structlog

from streams.config import Settings
from streams.crashpoints import reach
from streams.errors import BadWorld, Fenced
from streams.kafka import TopicFacts, TopicPartition, committed_offsets
from streams.runtime.delivery import Delivery, OutRecord
from streams.runtime.ownership import Ownership
from streams.runtime.selection import Selection
from streams.runtime.tracker import Tracker
from streams.runtime.transaction import GivenUp, Verdict
from streams.runtime.turns import Turns

log = structlog.get_logger(__name__)

_weight = attrgetter("weight")

_PAUSE_S = 0.2
#: With so many records in work, commits are let grow for so long.
_BACKLOG_RECORDS = 1_000
_GATHER_S = 0.2
#: The driver sends metadata with the NUL that ends a C string, and the broker counts it.
_NUL_BYTES = 1


class GroupCommit:
    """Commits finished deliveries of one stage, at most `max_commit_records` at a time.

    All are called from the commit thread: `write` gives the records of a delivery and does not
    raise, `in_flight` counts what was delivered and not released, `release` takes deliveries that
    are committed or dropped, `fail` an error after which the worker cannot go on.
    """

    def __init__(
        self,
        settings: Settings,
        topic: TopicFacts,
        group: str,
        member: str,
        ownership: Ownership,
        *,
        write: Callable[[Delivery], Sequence[OutRecord]],
        in_flight: Callable[[], int],
        release: Callable[[Sequence[Delivery]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._settings, self._topic, self._group = settings, topic, group
        self._ownership, self._write, self._in_flight = ownership, write, in_flight
        self._release, self._fail = release, fail
        self._changed = Condition()
        self._ready: list[Delivery] = []
        #: Finished, but the offset map has no room for them yet.
        self._waiting: list[Delivery] = []
        self._open: list[Delivery] = []
        self._made_room = False
        #: For others to see: since when the batch in hand is being committed (monotonic).
        self.busy_since: float | None = None
        self._draining = 0
        self._stop = self._abandon = False
        self._member = member
        self._transactor, self._thread = self._successor(None)
        #: What the transaction under way holds.
        self._attempt: Selection | None = None

    def start(self) -> None:
        """Fence a predecessor and start committing. Call it before the consumer subscribes."""
        self._transactor.open()
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _successor(self, unfinished: Selection | None) -> tuple[Turns, Thread]:
        """A transactor and its thread; `unfinished` is of unknown outcome."""
        transactor = Turns(self._settings, self._member, lambda: self._abandon)
        name = f"commit {self._group}"
        run = partial(self._run, transactor, unfinished)
        return transactor, Thread(target=run, name=name, daemon=True)

    @property
    def away(self) -> bool:
        """Whether commits wait for a Kafka that does not answer."""
        return self._transactor.away

    def rescue(self) -> None:
        """Replace a commit thread that hangs in the driver; the polling thread calls it often.

        The new one finds out, as after any unknown outcome, whether the transaction happened.
        """
        with self._changed:
            if self._abandon or not self._transactor.give_up_if_it_hangs():
                return
            log.error("driver_hangs", group=self._group, what="its producer is replaced")
            self._transactor, self._thread = self._successor(self._attempt)
            self._thread.start()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Finished deliveries, in the order in which their records are to be written."""
        with self._changed:
            self._ready.extend(deliveries)
            self._changed.notify_all()

    def drain(self, trackers: Collection[Tracker], timeout_s: float) -> bool:
        """Wait until what these trackers finished is committed. False when time ran out."""
        with self._changed:
            self._draining += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._holds(trackers), timeout_s)
            finally:
                self._draining -= 1

    def wait_resolved(self, trackers: Collection[Tracker], timeout_s: float) -> bool:
        """Wait until no open transaction holds work of these trackers."""
        wanted = set(trackers)
        with self._changed:
            return self._changed.wait_for(
                lambda: all(d.tracker not in wanted for d in self._open), timeout_s
            )

    def stop(self, timeout_s: float) -> bool:
        """Commit what is finished, then end. False when time ran out; the rest is then dropped."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._abandon = True
        ended = not self._thread.is_alive()
        if ended:
            self._transactor.close()
        return ended

    def _holds(self, trackers: Collection[Tracker]) -> bool:
        wanted = set(trackers)
        return any(
            d.tracker in wanted for part in (self._ready, self._waiting, self._open) for d in part
        )

    def _run(self, transactor: Turns, unfinished: Selection | None) -> None:
        try:
            batch = unfinished.deliveries if unfinished else self._take()
            while batch is not None:
                self.busy_since = time.monotonic()
                self._commit(transactor, batch, unfinished)
                self.busy_since = None
                unfinished = None
                with self._changed:
                    self._open = []
                    self._changed.notify_all()
                batch = self._take()
        except GivenUp:
            log.info("driver_returned", group=self._group)
        except BaseException as e:
            self._fail(e)

    def _take(self) -> list[Delivery] | None:
        """The next batch; None when it is time to end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ready or self._stop or (self._waiting and self._made_room)
            )
            self._gather()
            if self._abandon or (self._stop and not self._ready and not self._made_room):
                return None
            count = self._fitting(self._settings.max_commit_records)
            batch = self._waiting + self._ready[:count]
            del self._ready[:count]
            self._waiting = []
            self._made_room = False
            self._open = batch
            return batch

    def _fitting(self, limit: int) -> int:
        """How many of `_ready` one transaction takes: forks count by their children, one always
        fits."""
        ready = self._ready[:limit]
        if sum(map(_weight, ready)) <= limit:
            return len(ready)
        weight = 0
        for n, d in enumerate(ready):
            weight += d.weight
            if weight > limit and n:
                return n
        return len(ready)

    def _gather(self) -> None:
        """Under backlog let a commit grow: each costs the broker the same, however much it holds.

        What is finished never waits for what may not finish soon: only so long, and not at all when
        little is in work.
        """
        if self._in_flight() >= _BACKLOG_RECORDS:
            goal = self._settings.max_commit_records // 2
            self._changed.wait_for(
                lambda: (
                    len(self._ready) >= goal
                    or self._urgent
                    or self._in_flight() <= len(self._ready) + len(self._waiting)
                ),
                _GATHER_S,
            )

    @property
    def _urgent(self) -> bool:
        return self._stop or self._draining > 0

    def _commit(self, transactor: Turns, batch: list[Delivery], unknown: Selection | None) -> None:
        """Until `batch` is committed or no longer ours; first of all find out about `unknown`."""
        while True:
            selection = unknown or self._select(batch)
            if not selection.deliveries:
                return
            self._attempt = selection
            if unknown is None:
                reach("commit.selected")
                verdict = transactor.commit(
                    selection.records(self._write), selection.offsets(), selection.metadata
                )
            else:
                verdict, unknown = Verdict.UNKNOWN, None
            if verdict is Verdict.UNKNOWN:
                verdict = self._find_out(transactor, selection)
            if verdict is Verdict.COMMITTED:
                self._promote(selection)
                return
            if self._abandon:
                return
            # Aborted for certain: the same results again, as far as their partitions are ours.
            time.sleep(_PAUSE_S)
            batch = selection.deliveries

    def _select(self, batch: Sequence[Delivery]) -> Selection:
        """Rule 1: liveness of trackers and group metadata are read as one snapshot."""
        numbers: dict[Tracker, list[int]] = defaultdict(list)
        dropped: list[Delivery] = []
        chosen: list[Delivery] = []
        deferred: list[Delivery] = []
        with self._ownership.lock:
            for d in batch:
                if d.tracker.live:
                    numbers[d.tracker].append(d.number)
                else:
                    dropped.append(d)
            candidates = {
                t: t.plan(n, self._settings.offset_map_max_bytes - _NUL_BYTES)
                for t, n in numbers.items()
            }
            metadata = self._ownership.metadata
        cut = {t: set(c.numbers) for t, c in candidates.items() if len(c.numbers) < len(numbers[t])}
        for d in batch:
            if d.tracker not in candidates:
                continue
            fits = cut.get(d.tracker)
            (chosen if fits is None or d.number in fits else deferred).append(d)
        if deferred or dropped:
            with self._changed:
                self._waiting += deferred
                self._open = chosen
                self._changed.notify_all()
        if dropped:
            self._release(dropped)
        candidates = {t: c for t, c in candidates.items() if c.numbers}
        return Selection(chosen, candidates, metadata)

    def _promote(self, selection: Selection) -> None:
        with self._ownership.lock:
            for tracker, candidate in selection.candidates.items():
                tracker.promote(candidate)
        with self._changed:
            self._made_room = True
        self._release(selection.deliveries)

    def _find_out(self, transactor: Turns, selection: Selection) -> Verdict:
        """Rule 5: a new producer with our id ends what was open; then the stable offsets tell."""
        while not self._abandon:
            if not transactor.open():
                break
            try:
                found = committed_offsets(self._settings, self._group, self._topic)
            except BadWorld as e:
                log.warning("kafka_away", group=self._group, error=e.message)
                transactor.away = True
                time.sleep(_PAUSE_S)
                continue
            return self._outcome(selection, found)
        return Verdict.ABORTED

    def _outcome(self, selection: Selection, found: dict[int, TopicPartition]) -> Verdict:
        """By the stable offsets. Raises `Fenced` if somebody else moved a partition of ours.

        A process that was stopped may learn only now that its session has expired: its polling
        thread gets the time to say so before that is taken for a twin.
        """
        deadline = time.monotonic() + self._settings.session_timeout_ms / 1000
        while True:
            try:
                return selection.outcome(self._group, found)
            except Fenced:
                if time.monotonic() > deadline or self._abandon:
                    raise
                time.sleep(_PAUSE_S)
