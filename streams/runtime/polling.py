"""The thread that polls a group's consumer, and is the only one to touch it.

confluent-kafka serialises calls on a consumer, so another thread's call could starve for seconds.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Event, Thread

import structlog

from streams.config import Settings
from streams.errors import BadSetup, BadWorld, Fenced
from streams.kafka import Consumer, KafkaError, TopicFacts, TopicPartition, fenced, group_consumer
from streams.runtime.unowned import Unowned

log = structlog.get_logger(__name__)

#: How long a poll waits for a first record, and so how long a stop may take to be seen.
POLL_S = 0.1
#: The group looks for sessions that are over now and then.
_EXPIRY_S = 1.0
#: Sessions within which a consumer must not break again: a twin fences it within one.
_BROKEN_AGAIN_SESSIONS = 2

Callback = Callable[[Consumer, list[TopicPartition]], None]


class ConsumerBroke(BadWorld):
    """The driver's consumer will not work again.

    Operator action: none the first time, another takes its place; later start the worker again.
    """


class PollingThread(ABC):
    """Subscribes to one topic as a static member and calls `step` until it is stopped.

    A consumer that breaks for good is replaced, once in a while: a broker that stood still past the
    session may take a join of ours that we had given up for a twin's. A real twin fences the new
    one at once. `fail` gets, once and from this thread, an error after which the worker cannot go
    on.
    """

    #: Whether the ends of partitions are told as messages.
    tell_ends = False
    #: What to do when the position is no longer in the topic: an operator's sentence.
    gone_advice = "`handoff topics apply --reseed` starts a stage at the oldest record that is left"

    def __init__(
        self,
        settings: Settings,
        topic: TopicFacts,
        group: str,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._settings, self._topic, self._group, self._fail = settings, topic, group, fail
        self._member = settings.names.member(group, settings.slot)
        self._ending = Event()
        self._broken: BaseException | None = None
        self._unowned = Unowned(settings, topic, group, self._member)
        #: For others to see: when it polled last (monotonic), whether it has an assignment, be it
        #: an empty one.
        self.stepped_at = time.monotonic()
        self.assigned = False
        self._thread = Thread(target=self._run, name=f"poll {group}", daemon=True)

    @abstractmethod
    def step(self, consumer: Consumer) -> None:
        """Poll once; call it often enough for `max.poll.interval.ms`."""

    @abstractmethod
    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None: ...

    @abstractmethod
    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None: ...

    @abstractmethod
    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None: ...

    @abstractmethod
    def forget(self) -> None:
        """The consumer is gone, and with it whatever was assigned."""

    def start(self) -> None:
        self.stepped_at = time.monotonic()
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Close the consumer. A static member keeps its partitions until the session expires."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise what a callback kept; the errors that follow from it explain nothing."""
        if self._broken is not None:
            raise self._broken

    def judge(self, error: KafkaError) -> None:
        """Errors come as messages: most of them pass, some say that this worker must not go on."""
        if error.code() == KafkaError._PARTITION_EOF:
            return
        if fenced(error):
            raise Fenced(
                f"Another process runs with slot {self._settings.slot}: Kafka fenced "
                f"{self._member}. Give each worker process a slot of its own (--slot)."
            )
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise BadSetup(
                f"Group {self._group} cannot go on: {error.str()}. The position is no longer in "
                f"the topic: retention has passed it. {self.gone_advice}."
            )
        if error.fatal() or error.code() == KafkaError._FATAL:
            raise ConsumerBroke(
                f"The consumer of {self._group} broke: {error.str()}. Start the worker again."
            )
        log.warning("poll_error", group=self._group, error=error.str())

    def _run(self) -> None:
        grace_s = _BROKEN_AGAIN_SESSIONS * self._settings.session_timeout_ms / 1000
        broken_at = -grace_s
        try:
            while not self._ending.is_set():
                try:
                    self._consume()
                    self._stay_away()
                except (Fenced, ConsumerBroke) as e:
                    now = time.monotonic()
                    if now - broken_at < grace_s:
                        raise
                    broken_at = now
                    log.warning("consumer_replaced", group=self._group, why=e.message)
                    self._let_go()
        except BaseException as e:
            self._fail(e)

    def _let_go(self) -> None:
        self.assigned = False
        self._broken = None
        self.forget()

    def _stay_away(self) -> None:
        """Until the group has removed us, and dealt without us."""
        if not self._ending.is_set():
            self._let_go()
            self._ending.wait(self._settings.session_timeout_ms / 1000 + _EXPIRY_S)

    def _consume(self) -> None:
        """With one consumer, until it breaks, the group is to deal anew or we are stopped."""
        consumer = group_consumer(
            self._settings, self._group, self._member, tell_ends=self.tell_ends
        )
        try:
            consumer.subscribe(
                [self._topic.name],
                on_assign=self._kept(self.on_assign, assigned=True),
                on_revoke=self._kept(self.on_revoke),
                on_lost=self._kept(self.on_lost, assigned=False),
            )
            while not self._ending.is_set():
                self.step(consumer)
                self.stepped_at = time.monotonic()
                self.check()
                if self._unowned.ours_to_mend():
                    return
        finally:
            consumer.close()

    def _kept(self, callback: Callback, *, assigned: bool | None = None) -> Callback:
        """Callbacks run inside poll(): an exception would be lost in the C code, so it is kept."""

        def call(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            try:
                callback(consumer, partitions)
                if assigned is not None:
                    self.assigned = assigned
                    self._unowned.look_later()
            except BaseException as e:
                self._broken = e

        return call
