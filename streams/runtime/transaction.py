"""One transactional producer and what to make of its errors (decision 3, rules 4 to 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import structlog

from streams.config import Settings
from streams.crashpoints import reach
from streams.errors import BadSetup
from streams.kafka import (
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    meet,
    transactional_producer,
)
from streams.runtime.delivery import OutRecord

log = structlog.get_logger(__name__)
T = TypeVar("T")

_RETRY_PAUSE_S = 0.1
#: The partition is the partitioner's choice.
_BY_KEY = -1


class Verdict(Enum):
    """What is known about a transaction after the attempt to commit it."""

    COMMITTED = "committed"
    #: Aborted for certain: the same results may be committed again.
    ABORTED = "aborted"
    #: It may have happened. Only the committed offsets can tell.
    UNKNOWN = "unknown"


class GivenUp(Exception):
    """This thread hung in the driver, and another goes on in its place."""


class Transactor:
    """Commits batches of records with input offsets, one at a time. Used by one thread.

    `stopping` is asked while Kafka is away, so that a stop is not held up by retries. Other threads
    may ask whether Kafka is `away`, and give the transactor up.
    """

    def __init__(
        self, settings: Settings, transactional_id: str, stopping: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._id = transactional_id
        self._stopping = stopping
        self._producer: Producer | None = None
        #: A transport error, time-out or retry was seen: a late request may still be under way.
        self._tainted = False
        #: Kafka does not answer: no transaction can be begun, and none resolved.
        self.away = False
        self._lock = Lock()
        self._called_at: float | None = None
        self._given_up = False

    def give_up_if_it_hangs(self) -> bool:
        """True if a call into the driver has lasted twice as long as it was allowed to.

        Seen with librdkafka 2.16: `send_offsets_to_transaction` waits for ever if its connection
        broke at the wrong moment; nothing but a new producer helps. Should the call ever return,
        its thread gets `GivenUp`; a successor with our id has fenced this producer by then.
        """
        limit_s = 2 * self._settings.commit_timeout_s
        with self._lock:
            called_at = self._called_at
            self._given_up = called_at is not None and time.monotonic() - called_at > limit_s
            return self._given_up

    def open(self) -> bool:
        """A producer with our id: fences a predecessor, ends what it left open. False: stopped.

        Waits as long as Kafka is away. Raises `BadSetup` when Kafka refuses for good.
        """
        self.close()
        while not self._stopping():
            producer = transactional_producer(self._settings, self._id, self._on_broken)
            try:
                self._call(partial(meet, producer, self._settings.names.job_state_topic))
                self._call(partial(producer.init_transactions, self._settings.commit_timeout_s))
            except KafkaException as e:
                error: KafkaError = e.args[0]
                if not _may_pass(error):
                    raise BadSetup(
                        f"Kafka does not let {self._id} write in transactions: {error.str()}."
                    ) from e
                log.warning("kafka_away", transactional_id=self._id, error=error.str())
                self.away = True
                time.sleep(_RETRY_PAUSE_S)
                continue
            self.away = False
            producer.poll(0)  # what broke until now was before the epoch was raised
            self._producer, self._tainted = producer, False
            return True
        return False

    def close(self) -> None:
        if self._producer is not None:
            self._call(self._discard)

    def _discard(self) -> None:
        assert self._producer is not None
        # What is still queued belongs to a transaction that is over.
        self._producer.purge()
        self._producer = None

    def commit(
        self, records: Iterable[OutRecord], offsets: list[TopicPartition], metadata: Any
    ) -> Verdict:
        """Write `records` and `offsets` in one transaction."""
        if self._producer is not None:
            # The driver repeats requests by itself. That a connection broke, so that the first of
            # them may still be under way, it tells only when it is polled.
            self._producer.poll(0)
        if (self._producer is None or self._tainted) and not self.open():
            return Verdict.ABORTED
        producer = self._producer
        assert producer is not None
        timeout_s = self._settings.commit_timeout_s
        try:
            producer.begin_transaction()
            self._produce(producer, records)
            reach("commit.produced")
            self._settle(lambda: producer.send_offsets_to_transaction(offsets, metadata, timeout_s))
            reach("commit.offsets_sent")
            self._settle(lambda: producer.commit_transaction(timeout_s))
            reach("commit.committed")
        except KafkaException as e:
            error: KafkaError = e.args[0]
        else:
            return Verdict.COMMITTED
        # Not while the exception is handled: where a call to confluent-kafka 2.16 raises then, the
        # exception is never freed, nor are the frames that it knows, nor the producer in them.
        return self._resolve(producer, error)

    def _produce(self, producer: Producer, records: Iterable[OutRecord]) -> None:
        produce = producer.produce
        for topic, key, value, headers in records:
            try:
                # By position: names would cost a third of the call. No callbacks; the time is now.
                produce(topic, value, key, _BY_KEY, None, None, 0, headers)
            except BufferError:
                self._produce_slowly(producer, (topic, key, value, headers))

    @staticmethod
    def _produce_slowly(producer: Producer, record: OutRecord) -> None:
        """The client's queue is full: wait for room."""
        topic, key, value, headers = record
        while True:
            producer.poll(_RETRY_PAUSE_S)
            try:
                producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                continue

    def _settle(self, call: Callable[[], T]) -> T:
        """Repeat the same call on the same producer while its error says that this is right."""
        deadline = time.monotonic() + self._settings.commit_timeout_s
        while True:
            try:
                return self._call(call)
            except KafkaException as e:
                self._tainted = True
                error: KafkaError = e.args[0]
                if not error.retriable() or error.txn_requires_abort():
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_PAUSE_S)

    def _call(self, call: Callable[[], T]) -> T:
        """A call that may hang: others can see how long it lasts."""
        self._called_at = time.monotonic()
        try:
            return call()
        finally:
            with self._lock:
                self._called_at = None
                given_up = self._given_up
            if given_up:
                # It knows us, by its log: only the garbage collector would end it.
                self._producer = None
                raise GivenUp

    def _resolve(self, producer: Producer, error: KafkaError) -> Verdict:
        log.warning("commit_failed", transactional_id=self._id, error=error.str())
        self._tainted = True
        if not error.txn_requires_abort():
            return Verdict.UNKNOWN
        try:
            self._settle(lambda: producer.abort_transaction(self._settings.commit_timeout_s))
        except KafkaException as e:
            log.warning("abort_failed", transactional_id=self._id, error=e.args[0].str())
            return Verdict.UNKNOWN
        if error.code() in _REFUSED:
            raise BadSetup(
                f"Kafka refuses what {self._id} writes: {error.str()}. The transaction was "
                "aborted; mend the topics or the permissions and start the worker again."
            )
        return Verdict.ABORTED

    def _on_broken(self, what: str) -> None:
        self._tainted = True
        log.debug("connection_broke", transactional_id=self._id, what=what)


#: The same records would be refused again: to repeat them for ever would hide it.
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


def _may_pass(error: KafkaError) -> bool:
    """Whether trying again later makes sense while opening a producer."""
    return bool(error.retriable()) or error.code() in (
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
