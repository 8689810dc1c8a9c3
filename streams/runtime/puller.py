"""The polling thread of a stage: delivery within the budget, and who owns what (decision 3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from streams.config import Settings
from streams.crashpoints import reach
from streams.errors import BadSetup, BadWorld
from streams.kafka import (
    COMMITTED_TIMEOUT_S,
    WORLD,
    Consumer,
    KafkaError,
    KafkaException,
    Record,
    TopicFacts,
    TopicPartition,
    known_end,
    pull,
)
from streams.offsets import decode_map, suspects_end_of
from streams.runtime.budget import Budget
from streams.runtime.delivery import Delivery
from streams.runtime.group_commit import GroupCommit
from streams.runtime.ownership import Ownership
from streams.runtime.polling import POLL_S, ConsumerBroke, PollingThread
from streams.runtime.records import now_us
from streams.runtime.tracker import Tracker

log = structlog.get_logger(__name__)

_BATCH_RECORDS = 1_000
#: Back-pressure that lasts longer is told to Kafka: `pause` throws away what was prefetched.
_PAUSE_AFTER_S = 1.0
_METADATA_EVERY_S = 1.0
#: Offsets at the end of a partition that may be markers of transactions, and no more than that.
_MARKERS = 8
#: Longer than a dead predecessor's transaction can keep its offsets unstable.
_UNSTABLE_S = 60.0
#: A tracker remembers nine bytes for each record past an unfinished head.
_MAX_WINDOW_RECORDS = 2_000_000


class Puller(PollingThread):
    """Pulls records of one stage and hands them over in batches, within the budget.

    `deliver` takes a batch, `ended` the trackers that were revoked or lost (their handlers are to
    be cancelled), `fail` an error after which the worker cannot go on. All are called from this
    thread.
    """

    def __init__(
        self,
        settings: Settings,
        topic: TopicFacts,
        group: str,
        *,
        ownership: Ownership,
        commits: GroupCommit,
        budget: Budget,
        deliver: Callable[[list[Delivery]], None],
        ended: Callable[[Sequence[Tracker]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(settings, topic, group, fail)
        self._ownership, self._commits, self._budget = ownership, commits, budget
        self._deliver, self._ended = deliver, ended
        self._quiet = self._paused = False
        self._full_since: float | None = None
        #: Dropped, and perhaps in a transaction whose end is not known yet.
        self._unresolved: list[Tracker] = []
        self._metadata_at = 0.0
        #: Id of the group's member that owns our partitions.
        self._joined_as: str | None = None
        #: Once for each look at the partitions' ends the next batch tells how old it is.
        self._age_due = False
        #: End and position of each partition at the last look.
        self._looked: dict[int, tuple[int, int]] = {}

    def quiesce(self) -> None:
        """Take no further records; the consumer stays a member until `stop`."""
        self._quiet = True

    def step(self, consumer: Consumer) -> None:
        now = time.monotonic()
        self._commits.rescue()
        if now - self._metadata_at > _METADATA_EVERY_S:
            self._refresh_metadata(consumer)
            self.look_ahead(consumer)
        room = 0 if self._quiet or self._window_full() else self._budget.room()
        if room <= 0:
            self._hold(consumer, now)
            return
        self._resume(consumer)
        self._take(pull(consumer, min(room, _BATCH_RECORDS), POLL_S, self._ownership.trackers.get))

    def _take(self, messages: Sequence[Record]) -> None:
        self.check()
        polled_us = now_us()
        deliveries = []
        with self._ownership.lock:
            trackers = self._ownership.trackers
            for message in messages:
                if (error := message.error()) is not None:
                    self.judge(error)
                    continue
                tracker = trackers.get(message.partition())
                if tracker is None:
                    continue
                number = tracker.deliver(message.offset())
                if number is not None:
                    deliveries.append(Delivery(message, tracker, number, polled_us))
        if deliveries:
            if self._age_due:
                self._age_due = False
                for d in {d.tracker: d for d in deliveries}.values():
                    d.tracker.newest_us = d.produced_us
            reach("poll.delivered")
            self._budget.take(deliveries)
            self._deliver(deliveries)

    def _hold(self, consumer: Consumer, now: float) -> None:
        """No room: poll less. If it lasts, pause, and go on polling for the group's sake."""
        if self._full_since is None:
            self._full_since = now
        lasted = now - self._full_since > _PAUSE_AFTER_S
        if (lasted or self._quiet) and not self._paused:
            consumer.pause(consumer.assignment())
            self._paused = True
        if self._paused:
            self._take(pull(consumer, 1, 0, self._ownership.trackers.get))
        if self._quiet:
            time.sleep(0.02)
        else:
            self._budget.wait_for_room(0.05)

    def _resume(self, consumer: Consumer) -> None:
        self._full_since = None
        if self._paused:
            consumer.resume(consumer.assignment())
            self._paused = False

    def _window_full(self) -> bool:
        return any(t.window > _MAX_WINDOW_RECORDS for t in self._ownership.trackers.values())

    def _refresh_metadata(self, consumer: Consumer) -> None:
        metadata = self._membership(consumer)
        self._metadata_at = time.monotonic()
        if metadata is not None:
            with self._ownership.lock:
                self._ownership.metadata = metadata

    def _membership(self, consumer: Consumer) -> Any:
        """The group metadata, if of the member that our partitions were assigned to; None while it
        is of none: what we have is then refused.

        The group removes a member that it does not hear of, and others get its partitions. When its
        join comes through at last it is a new member; librdkafka 2.16 then keeps the partitions and
        tells nobody that they were lost, and the broker takes a member's offsets for any partition.
        Raises `ConsumerBroke`: another consumer begins with nothing.
        """
        metadata = consumer.consumer_group_metadata()
        # Asked second: ids never come back, so with the old id the metadata is old as well.
        member = consumer.memberid() or None
        if self._ownership.trackers and member != self._joined_as:
            if member is None:
                return None
            raise ConsumerBroke(
                f"Group {self._group} had removed {self._member}, which joined it again as another "
                "member; what it believed to own may have been others' meanwhile."
            )
        self._joined_as = member
        return metadata

    def look_ahead(self, consumer: Consumer) -> None:
        """Write down for others how far each partition is behind; for the polling thread."""
        with self._ownership.lock:
            for tracker in self._ownership.trackers.values():
                self._measure(consumer, tracker)
        self._age_due = True

    def _measure(self, consumer: Consumer, tracker: Tracker) -> None:
        """How far it is behind, by the last answer to a fetch: no request is made."""
        end = known_end(consumer, TopicPartition(tracker.topic, tracker.partition))
        seen = (end, tracker.position)
        tracker.behind = max(0, end - tracker.position)
        still = self._looked.get(tracker.partition) == seen and self._full_since is None
        if still and tracker.behind <= _MARKERS:
            # It was asked for and did not come: markers, which are no records.
            tracker.behind = 0
        self._looked[tracker.partition] = seen

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._resolve(while_away=True)
        trackers = self._read_trackers(consumer, partitions)
        consumer.incremental_assign(
            [TopicPartition(t.topic, t.partition, t.head) for t in trackers]
        )
        # The driver remembers a pause over the loss of a partition. One that was paused when it was
        # lost would stand still for ever if all others were resumed while it was away.
        assigned = [TopicPartition(t.topic, t.partition) for t in trackers]
        (consumer.pause if self._paused else consumer.resume)(assigned)
        metadata = self._membership(consumer)
        self._ownership.assign(trackers, metadata)
        log.info("assigned", group=self._group, partitions=[t.partition for t in trackers])

    def _read_trackers(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[Tracker]:
        if not partitions:
            return []
        deadline = time.monotonic() + _UNSTABLE_S
        while not self._ending.is_set():
            try:
                committed = consumer.committed(partitions, COMMITTED_TIMEOUT_S)
            except KafkaException as e:
                error: KafkaError = e.args[0]
            else:
                refused = next((tp.error for tp in committed if tp.error is not None), None)
                if refused is None:
                    return [self._tracker(tp) for tp in committed]
                error = refused
            if not error.retriable() and error.code() not in WORLD:
                raise BadSetup(
                    f"The committed offsets of {self._group} are not to be had: {error.str()}."
                )
            if time.monotonic() > deadline:
                raise BadWorld(
                    f"The committed offsets of {self._group} were not to be had for "
                    f"{_UNSTABLE_S:.0f} s: {error.str()}. Start the worker again; if that does not "
                    "help, `kafka-transactions.sh find-hanging` shows a transaction that holds "
                    "them, and `abort` ends it."
                )
            log.warning("kafka_away", group=self._group, error=error.str())
            time.sleep(0.2)
        return []

    def _tracker(self, tp: TopicPartition) -> Tracker:
        where = f"group {self._group} on {tp.topic}[{tp.partition}]"
        if tp.offset < 0:
            raise BadSetup(f"There is no offset of {where}. Run `handoff topics apply` first.")
        metadata = tp.metadata or ""
        finished = (
            decode_map(metadata, topic_id=self._topic.topic_id, committed=tp.offset, where=where)
            if metadata
            else []
        )
        return Tracker(
            topic=tp.topic,
            topic_id=self._topic.topic_id,
            partition=tp.partition,
            head=tp.offset,
            metadata=metadata,
            finished=finished,
            was_reset=not metadata,
            suspects_end=suspects_end_of(metadata) if metadata else 0,
        )

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [tp.partition for tp in partitions]
        self._refresh_metadata(consumer)
        self._commits.drain(self._ownership.owned(numbers), self._settings.revoke_timeout_s)
        reach("poll.revoked")
        self._drop(numbers)
        self._resolve(while_away=False)
        consumer.incremental_unassign(partitions)
        log.info("revoked", group=self._group, partitions=numbers)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Who waits here is fenced by itself: the driver forgets its member id and goes on beating.
        # What is open is refused by the group's generation; it is resolved before we own anything.
        numbers = [tp.partition for tp in partitions]
        self._drop(numbers)
        consumer.incremental_unassign(partitions)
        log.warning("lost", group=self._group, partitions=numbers)

    def forget(self) -> None:
        self._drop(list(self._ownership.trackers))
        self._joined_as = None
        self._paused = False
        self._full_since = None

    def _drop(self, partitions: Sequence[int]) -> None:
        """Nothing that these partitions delivered is committed from now on."""
        trackers = self._ownership.end(partitions)
        self._ended(trackers)
        self._unresolved += trackers

    def _resolve(self, *, while_away: bool) -> None:
        """Wait until no open transaction holds work that was dropped.

        As long as Kafka is away nobody can tell: wait on, or leave it to the next assignment.
        """
        limit_s = 4 * self._settings.commit_timeout_s
        deadline = time.monotonic() + limit_s
        while not self._commits.wait_resolved(self._unresolved, POLL_S):
            self._commits.rescue()
            if self._ending.is_set() or (self._commits.away and not while_away):
                return
            if self._commits.away:
                deadline = time.monotonic() + limit_s
            if time.monotonic() > deadline:
                raise BadWorld(
                    f"A transaction of {self._group} with work of partitions that are no longer "
                    "ours could not be resolved; the worker stops, the transaction times out at "
                    "the broker. Start the worker again."
                )
        self._unresolved = []
