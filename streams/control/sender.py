"""Produces the records of control and waits until Kafka has confirmed each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from streams.config import Settings
from streams.errors import BadSetup, BadWorld, HandoffError
from streams.kafka import WORLD, KafkaError, KafkaException, idempotent_producer

_POLL_S: Final = 0.1


class Outgoing(NamedTuple):
    """A record to produce; a null `value` is a tombstone."""

    topic: str
    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]


def send(settings: Settings, records: Sequence[Outgoing]) -> None:
    """Returns once Kafka has all of `records`. Blocking.

    Raises `BadWorld` or `BadSetup` when it has not, perhaps after having taken some: all of them
    may be sent again.
    """
    if not records:
        return
    producer = idempotent_producer(settings)
    waiting, faults = 0, list[HandoffError]()

    def answered(error: KafkaError | None, _: Any) -> None:
        nonlocal waiting
        waiting -= 1
        if error is not None:
            faults.append(_fault(error))

    for record in records:
        while True:
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=answered,
                )
                waiting += 1
                break
            except BufferError:
                producer.poll(_POLL_S)
            except KafkaException as e:
                raise _fault(e.args[0]) from e
    while waiting:
        producer.poll(_POLL_S)
    if faults:
        raise faults[0]


def _fault(error: KafkaError) -> HandoffError:
    mends = error.code() in WORLD or error.retriable() or error.fatal()
    return (BadWorld if mends else BadSetup)(
        f"Kafka did not confirm what was ordered: {error.str()}. Run it again."
    )
