"""Follows a topic as it grows, read-committed, by assignment: no group, no commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, cast

from confluent_kafka import KafkaError, TopicPartition

from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.kafka.clients import Record, reading_consumer
from streams.kafka.faults import WORLD, blame
from streams.kafka.topics import TopicFacts

_POLL_S: Final = 0.2
_BATCH_RECORDS: Final = 1_000


def follow(
    settings: Settings, topic: TopicFacts, starts: Mapping[int, int], *, idle: bool = False
) -> Iterator[list[Record]]:
    """All records of `topic` from `starts` (by partition) on, as they are committed, without end;
    within a partition in the order of offsets. Nothing is left out, however slow the caller is.
    With `idle` an empty list says that nothing has come for a moment: the caller may stop there.

    Raises `BadWorld` if records expired before they were read, `BadSetup` if the topic is gone. A
    broker that is away is waited for.
    """
    consumer = reading_consumer(settings, f"{topic.name}.following")
    try:
        consumer.assign([TopicPartition(topic.name, p, at) for p, at in starts.items()])
        while True:
            with blame(settings, f"following {topic.name}"):
                first = consumer.poll(_POLL_S)
                # A call for many would wait for all of them, or for its time-out.
                rest = [] if first is None else consumer.consume(_BATCH_RECORDS, 0)
            got = cast("list[Record]", [first, *rest] if first is not None else [])
            if (batch := [record for record in got if _is_record(record)]) or idle:
                yield batch
    finally:
        consumer.close()


def _is_record(record: Record) -> bool:
    error = record.error()
    if error is None:
        return True
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise BadWorld(
            f"Records of {record.topic()}[{record.partition()}] expired before they were read. "
            "Begin anew."
        )
    if error.code() != KafkaError._PARTITION_EOF and error.code() not in WORLD:
        raise BadSetup(f"Kafka refused to give {record.topic()}: {error.str()}.")
    return False
