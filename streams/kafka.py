"""Kafka: client settings, topic facts, and which of its errors are the world's fault.

The sole importer of confluent_kafka; other modules take the driver's names from here. Settings that
the commit protocol depends on (decision 3) are made here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from uuid import UUID

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from streams.config import Settings
from streams.errors import BadSetup, BadWorld

__all__ = [
    "OFFSET_INVALID",
    "AdminClient",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewTopic",
    "Producer",
    "Record",
    "TopicFacts",
    "TopicPartition",
    "admin_client",
    "blame",
    "change_topic_config",
    "committed_offsets",
    "create_topic",
    "delete_topics",
    "describe_topics",
    "end_offsets",
    "fenced",
    "group_consumer",
    "idempotent_producer",
    "low_watermarks",
    "pull",
    "reading_consumer",
    "seed_offsets",
    "topic_config",
    "transactional_producer",
]

#: Java's default partitioner: librdkafka's own is CRC32, which would put records of one job that
#: different clients write into different partitions.
PARTITIONER: Final = "murmur2_random"
#: Room for a dead letter's headers and a state record's envelope around the largest payload.
_MESSAGE_MAX_BYTES: Final = 4 * 2**20
_ADMIN_TIMEOUT_S: Final = 20.0
#: Longer than a dead worker's transaction can stay open: its time-out and the broker's scan.
_STABLE_TIMEOUT_S: Final = 60.0

ErrorCallback = Callable[[KafkaError], None]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the cluster says of a topic; the UUID tells it from a namesake made later."""

    name: str
    topic_id: UUID
    partitions: int


class Record(Protocol):
    """A consumed message without an error: the driver's `Message`, typed as it then is."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> KafkaError | None: ...
    def __len__(self) -> int: ...


def pull(consumer: Consumer, max_records: int, wait_s: float) -> list[Record]:
    """What there is, at most `max_records`; waits `wait_s` for the first only. May hold errors."""
    first = consumer.poll(wait_s)
    if first is None:
        return []
    rest = consumer.consume(max_records - 1, 0) if max_records > 1 else []
    return cast("list[Record]", [first, *rest])


def fenced(error: KafkaError) -> bool:
    """Whether a consumer's error says that a twin has taken its place in the group.

    librdkafka tells a static member so by a general fatal error; the cause is in its text only.
    """
    return error.code() == KafkaError.FENCED_INSTANCE_ID or (
        error.code() == KafkaError._FATAL and "fenced" in error.str()
    )


def _common(settings: Settings, on_error: ErrorCallback | None = None) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "client.id": "handoff",
        "message.max.bytes": _MESSAGE_MAX_BYTES,
        "socket.keepalive.enable": True,
        # Small requests must not wait for Nagle's algorithm.
        "socket.nagle.disable": True,
        "reconnect.backoff.max.ms": 1_000,
        "error_cb": on_error or (lambda _e: None),
        # Transport noise goes to `error_cb`; librdkafka would print it to stderr as well.
        "log_level": 2,
    }


def transactional_producer(
    settings: Settings, transactional_id: str, on_error: ErrorCallback
) -> Producer:
    """A producer for group commits. The fixed id lets a restarted worker abort its predecessor's
    open transaction at once (KIP-98)."""
    return Producer(
        {
            **_common(settings, on_error),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": settings.transaction_timeout_ms,
            "partitioner": PARTITIONER,
            # A commit flushes at once, so lingering only delays the first batches of it.
            "linger.ms": 2,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )


def idempotent_producer(settings: Settings, on_error: ErrorCallback | None = None) -> Producer:
    """A producer for submissions: acks=all, no duplicates from its own retries."""
    return Producer(
        {
            **_common(settings, on_error),
            "enable.idempotence": True,
            "partitioner": PARTITIONER,
            "linger.ms": 10,
            # A sender should hear that the cluster is away, not wait for five minutes.
            "delivery.timeout.ms": 30_000,
            "queue.buffering.max.messages": 200_000,
        }
    )


def _reading(settings: Settings, group: str, on_error: ErrorCallback | None) -> dict[str, Any]:
    return {
        **_common(settings, on_error),
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        # A position that is gone is an accident to be told, not a reason to skip or repeat work.
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "fetch.message.max.bytes": 4 * 2**20,
        "queued.max.messages.kbytes": 32_768,
    }


def group_consumer(
    settings: Settings,
    group: str,
    member: str,
    on_error: ErrorCallback | None = None,
    *,
    tell_ends: bool = False,
) -> Consumer:
    """A static member of a group: after a restart it has its partitions back at once (KIP-345)."""
    return Consumer(
        {
            **_reading(settings, group, on_error),
            "group.instance.id": member,
            "enable.partition.eof": tell_ends,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": settings.session_timeout_ms,
            "heartbeat.interval.ms": max(200, settings.session_timeout_ms // 4),
            "max.poll.interval.ms": max(settings.max_poll_interval_ms, settings.session_timeout_ms),
        }
    )


def reading_consumer(settings: Settings, group: str) -> Consumer:
    """A consumer for `assign` by hand: it joins no group and commits nothing."""
    return Consumer({**_reading(settings, group, None), "enable.partition.eof": True})


def admin_client(settings: Settings) -> AdminClient:
    return AdminClient(_common(settings))


@contextmanager
def blame(settings: Settings, doing: str) -> Iterator[None]:
    """Turn Kafka's errors into sentences: unreachable is `BadWorld`, refused is `BadSetup`."""
    where = settings.kafka_bootstrap_servers
    try:
        yield
    except TimeoutError as e:
        # The driver's futures, when no broker could be reached at all.
        raise BadWorld(f"Kafka at {where} did not answer in time while {doing}.") from e
    except KafkaException as e:
        error: KafkaError = e.args[0]
        if error.code() in _WORLD or error.retriable():
            raise BadWorld(f"Kafka at {where} does not serve while {doing}: {error.str()}.") from e
        raise BadSetup(f"Kafka at {where} refused while {doing}: {error.str()}.") from e


_WORLD: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)


def describe_topics(
    settings: Settings, admin: AdminClient, names: Iterable[str]
) -> dict[str, TopicFacts]:
    """Facts of those of `names` that exist. Raises `BadWorld` when the cluster does not answer."""
    wanted = list(names)
    if not wanted:
        return {}
    facts: dict[str, TopicFacts] = {}
    with blame(settings, "describing topics"):
        futures = admin.describe_topics(TopicCollection(wanted), request_timeout=_ADMIN_TIMEOUT_S)
        for name, future in futures.items():
            try:
                found = future.result(_ADMIN_TIMEOUT_S)
            except KafkaException as e:
                if e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            facts[name] = TopicFacts(name, _uuid(found.topic_id), len(found.partitions))
    return facts


def _uuid(topic_id: Any) -> UUID:
    high = topic_id.get_most_significant_bits() & (2**64 - 1)
    low = topic_id.get_least_significant_bits() & (2**64 - 1)
    return UUID(int=high << 64 | low)


def _list_offsets(
    settings: Settings, admin: AdminClient, topic: TopicFacts, spec: OffsetSpec, doing: str
) -> dict[int, int]:
    asked = {TopicPartition(topic.name, p): spec for p in range(topic.partitions)}
    # The leaders of a topic that was created a moment ago may not know of it yet.
    deadline = time.monotonic() + _ADMIN_TIMEOUT_S
    while True:
        try:
            with blame(settings, doing):
                futures = admin.list_offsets(
                    asked,
                    isolation_level=IsolationLevel.READ_COMMITTED,
                    request_timeout=_ADMIN_TIMEOUT_S,
                )
                return {p.partition: f.result(_ADMIN_TIMEOUT_S).offset for p, f in futures.items()}
        except BadWorld:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def end_offsets(settings: Settings, admin: AdminClient, topic: TopicFacts) -> dict[int, int]:
    """Last stable offset of each partition: what a read-committed reader can reach now."""
    return _list_offsets(
        settings, admin, topic, OffsetSpec.latest(), f"reading ends of {topic.name}"
    )


def low_watermarks(settings: Settings, admin: AdminClient, topic: TopicFacts) -> dict[int, int]:
    """First offset that is still there, of each partition."""
    return _list_offsets(
        settings, admin, topic, OffsetSpec.earliest(), f"reading starts of {topic.name}"
    )


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
                    found = consumer.committed(asked, _ADMIN_TIMEOUT_S)
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
    deadline = time.monotonic() + _ADMIN_TIMEOUT_S
    while True:
        with blame(settings, f"seeding offsets of group {group}"):
            futures = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, parts)], request_timeout=_ADMIN_TIMEOUT_S
            )
            done = futures[group].result(_ADMIN_TIMEOUT_S)
        refused = [tp for tp in done.topic_partitions if tp.error is not None]
        if not refused:
            return
        code = refused[0].error.code()
        if code not in _WORLD | {KafkaError.UNKNOWN_MEMBER_ID} or time.monotonic() > deadline:
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


def topic_config(settings: Settings, admin: AdminClient, name: str) -> dict[str, str]:
    """All settings of an existing topic as the broker spells them, defaults included."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    with blame(settings, f"reading the settings of topic {name}"):
        futures = admin.describe_configs([resource], request_timeout=_ADMIN_TIMEOUT_S)
        entries = futures[resource].result(_ADMIN_TIMEOUT_S)
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}


def create_topic(settings: Settings, admin: AdminClient, topic: NewTopic) -> None:
    """Create a topic; one that somebody else created meanwhile is left as it is."""
    with blame(settings, f"creating topic {topic.topic}"):
        futures = admin.create_topics([topic], request_timeout=_ADMIN_TIMEOUT_S)
        try:
            futures[topic.topic].result(_ADMIN_TIMEOUT_S)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def change_topic_config(
    settings: Settings, admin: AdminClient, name: str, changes: Mapping[str, str]
) -> None:
    """Set the given settings of a topic and leave the others alone."""
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    with blame(settings, f"changing the settings of topic {name}"):
        futures = admin.incremental_alter_configs([resource], request_timeout=_ADMIN_TIMEOUT_S)
        futures[resource].result(_ADMIN_TIMEOUT_S)


def delete_topics(settings: Settings, admin: AdminClient, names: Iterable[str]) -> None:
    """Delete topics and all their records; those that are gone already are passed over."""
    wanted = list(names)
    if not wanted:
        return
    with blame(settings, "deleting topics"):
        for future in admin.delete_topics(wanted, request_timeout=_ADMIN_TIMEOUT_S).values():
            try:
                future.result(_ADMIN_TIMEOUT_S)
            except KafkaException as e:
                if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
