"""Offsets: of partitions and of groups, read stable and seeded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.kafka.clients import reading_consumer
from streams.kafka.faults import ADMIN_TIMEOUT_S, WORLD, blame
from streams.kafka.topics import TopicFacts

#: One question for committed offsets, to be repeated. Seen with librdkafka 2.16: one that was under
#: way while a broker stood still and came back got no answer in 60 s.
COMMITTED_TIMEOUT_S: Final = 5.0
#: Longer than a dead worker's transaction can stay open: its time-out and the broker's scan.
_STABLE_TIMEOUT_S: Final = 60.0


def _list_offsets(
    settings: Settings,
    admin: AdminClient,
    topic: TopicFacts,
    spec: OffsetSpec,
    doing: str,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[int, int]:
    found = _list(settings, admin, topic, spec, doing, isolation)
    return {partition: info.offset for partition, info in found.items()}


def _list(
    settings: Settings,
    admin: AdminClient,
    topic: TopicFacts,
    spec: OffsetSpec,
    doing: str,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[int, ListOffsetsResultInfo]:
    asked = {TopicPartition(topic.name, p): spec for p in range(topic.partitions)}
    # The leaders of a topic that was created a moment ago may not know of it yet.
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while True:
        try:
            with blame(settings, doing):
                futures = admin.list_offsets(
                    asked,
                    isolation_level=isolation,
                    request_timeout=ADMIN_TIMEOUT_S,
                )
                return {p.partition: f.result(ADMIN_TIMEOUT_S) for p, f in futures.items()}
        except BadWorld:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def end_offsets(settings: Settings, admin: AdminClient, topic: TopicFacts) -> dict[int, int]:
    """Last stable offset of each partition: what a read-committed reader can reach now."""
    return _list_offsets(
        settings, admin, topic, OffsetSpec.latest(), f"reading ends of {topic.name}"
    )


def high_watermarks(settings: Settings, admin: AdminClient, topic: TopicFacts) -> dict[int, int]:
    """End of each partition, open transactions included: whatever was written before this call,
    and is committed some day, lies below it."""
    return _list_offsets(
        settings,
        admin,
        topic,
        OffsetSpec.latest(),
        f"reading ends of {topic.name}",
        IsolationLevel.READ_UNCOMMITTED,
    )


def low_watermarks(settings: Settings, admin: AdminClient, topic: TopicFacts) -> dict[int, int]:
    """First offset that is still there, of each partition."""
    return _list_offsets(
        settings, admin, topic, OffsetSpec.earliest(), f"reading starts of {topic.name}"
    )


def offsets_since(
    settings: Settings, admin: AdminClient, topic: TopicFacts, epoch_ms: int
) -> dict[int, int]:
    """First offset of each partition whose timestamp is `epoch_ms` or later, -1 where none is."""
    spec = OffsetSpec.for_timestamp(epoch_ms)
    return _list_offsets(settings, admin, topic, spec, f"reading times of {topic.name}")


def first_records(
    settings: Settings, admin: AdminClient, topic: TopicFacts
) -> dict[int, tuple[int, int]]:
    """Offset and timestamp (epoch ms) of the first record of each partition that is still there;
    an offset of -1 where none is. A transaction's marker may stand for it."""
    spec = OffsetSpec.for_timestamp(0)
    found = _list(settings, admin, topic, spec, f"reading first times of {topic.name}")
    return {partition: (info.offset, info.timestamp) for partition, info in found.items()}


def committed_offsets(
    settings: Settings, group: str, topic: TopicFacts
) -> dict[int, TopicPartition]:
    """Committed offset and metadata of each partition that has one, read stable (KIP-447).

    Waits while a transaction holds an offset of the group: that partition *has* an offset, and
    which one is known when the transaction has ended or timed out. Raises `BadWorld` if neither.
    """
    # By a consumer that joins nothing: the admin client's list_consumer_group_offsets crashes the
    # process when the coordinator is not ready (seen with confluent-kafka 2.16.1).
    consumer = reading_consumer(settings, group)
    asked = [TopicPartition(topic.name, p) for p in range(topic.partitions)]
    deadline = time.monotonic() + _STABLE_TIMEOUT_S
    try:
        while True:
            try:
                with blame(settings, f"reading offsets of group {group}"):
                    found = consumer.committed(asked, COMMITTED_TIMEOUT_S)
                error = next((tp.error for tp in found if tp.error is not None), None)
                if error is None:
                    return {tp.partition: tp for tp in found if tp.offset >= 0}
                why = error.str()
            except BadWorld as e:
                why = e.message
            if time.monotonic() > deadline:
                raise BadWorld(f"The offsets of group {group} are not to be had: {why}.")
            time.sleep(0.1)
    finally:
        consumer.close()


def seed_offsets(
    settings: Settings,
    admin: AdminClient,
    group: str,
    topic: TopicFacts,
    offsets: Mapping[int, tuple[int, str]],
) -> None:
    """Commit (offset, metadata) of partitions for a group that has no running member.

    A static member that has ended stays one until its session expires: that is waited for.
    """
    parts = [
        TopicPartition(topic.name, p, offset, metadata=metadata)
        for p, (offset, metadata) in sorted(offsets.items())
    ]
    # A coordinator that has just been elected loads its log first.
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while True:
        with blame(settings, f"seeding offsets of group {group}"):
            futures = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, parts)], request_timeout=ADMIN_TIMEOUT_S
            )
            done = futures[group].result(ADMIN_TIMEOUT_S)
        refused = [tp for tp in done.topic_partitions if tp.error is not None]
        if not refused:
            return
        code = refused[0].error.code()
        if code not in WORLD | {KafkaError.UNKNOWN_MEMBER_ID} or time.monotonic() > deadline:
            why = (
                "a worker of the group is running; stop it first"
                if code == KafkaError.UNKNOWN_MEMBER_ID
                else refused[0].error.str()
            )
            raise BadSetup(
                f"Kafka did not take the offset of group {group} for "
                f"{refused[0].topic}[{refused[0].partition}]: {why}."
            )
        time.sleep(0.1)
