"""The dispatcher's producer: writes records and says of each what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from streams.config import Settings
from streams.kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    admin_client,
    describe_topics,
    idempotent_producer,
)
from streams.timers.record import AnyHeaders

#: A cluster that is away longer is told to the dispatcher, which lets go of its rows meanwhile.
_DELIVERY_TIMEOUT_MS: Final = 10_000
_FLUSH_TIMEOUT_S: Final = _DELIVERY_TIMEOUT_MS / 1000 + 5
_POLL_S: Final = 0.05


class Return(NamedTuple):
    """One record to write."""

    topic: str
    key: bytes
    value: bytes | None
    headers: AnyHeaders


@dataclass(slots=True)
class Sent:
    """What became of a batch, by position; what is in none of the three was not confirmed."""

    acknowledged: list[int] = field(default_factory=list)
    #: Refused, and would be again: position and reason.
    refused: dict[int, str] = field(default_factory=dict)
    #: Why some were not confirmed: they may lie in the topic or not.
    failed: str | None = None


class Sender:
    """Blocking; one thread at a time. Acknowledged means on all replicas."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: Producer | None = None
        self._known: set[str] = set()

    def send(self, records: Sequence[Return]) -> Sent:
        """Write all of `records` with one flush. Raises `BadWorld` when Kafka cannot be asked for
        topics; nothing was written then."""
        sent = Sent()
        missing = self._missing({r.topic for r in records})
        producer = self._producer or self._open()
        for n, record in enumerate(records):
            if record.topic in missing:
                sent.refused[n] = f"Topic {record.topic} does not exist."
            else:
                self._produce(producer, n, record, sent)
        producer.flush(_FLUSH_TIMEOUT_S)
        if len(producer):
            sent.failed = sent.failed or "no answer in time"
        if sent.failed is not None:
            self.close()
        return sent

    def close(self) -> None:
        """What is still queued is dropped: its rows are still there."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _open(self) -> Producer:
        self._producer = idempotent_producer(
            self._settings, delivery_timeout_ms=_DELIVERY_TIMEOUT_MS
        )
        return self._producer

    def _missing(self, topics: set[str]) -> set[str]:
        # Asked first, since the producer would wait for a missing topic until its time-out, and
        # all other timers with it.
        if unknown := topics - self._known:
            with admin_client(self._settings) as admin:
                found = describe_topics(self._settings, admin, sorted(unknown))
            self._known |= found.keys()
        return topics - self._known

    def _produce(self, producer: Producer, n: int, record: Return, sent: Sent) -> None:
        headers: Any = list(record.headers)
        delivered = partial(self._delivered, sent, n, record.topic)
        while True:
            try:
                producer.produce(
                    record.topic, record.value, record.key, headers=headers, on_delivery=delivered
                )
                return
            except BufferError:
                producer.poll(_POLL_S)
            except KafkaException as e:
                self._judge(sent, n, record.topic, e.args[0])
                return

    def _delivered(
        self, sent: Sent, n: int, topic: str, error: KafkaError | None, _: Message
    ) -> None:
        if error is None:
            sent.acknowledged.append(n)
        else:
            self._judge(sent, n, topic, error)

    def _judge(self, sent: Sent, n: int, topic: str, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            # It may have been deleted since it was asked for.
            self._known.discard(topic)
            sent.refused[n] = f"Kafka refuses it for {topic}: {error.str()}."
        else:
            sent.failed = error.str()


_REFUSED: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
