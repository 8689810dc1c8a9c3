"""Clients and their settings. What the commit protocol depends on (decision 3) is set here only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from streams.config import Settings

#: Java's default partitioner: librdkafka's own is CRC32, which would put records of one job that
#: different clients write into different partitions.
PARTITIONER: Final = "murmur2_random"
#: Room for a dead letter's headers and a state record's envelope around the largest payload.
_MESSAGE_MAX_BYTES: Final = 4 * 2**20

#: Facilities of librdkafka's log, and the level from which on it says that a connection broke.
_BROKEN: Final = frozenset({"FAIL", "REQTMOUT"})
_LOG_INFO: Final = 6

ErrorCallback = Callable[[KafkaError], None]


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


def pull(
    consumer: Consumer, max_records: int, wait_s: float, owner: Callable[[int], object]
) -> list[Record]:
    """What there is, at most `max_records`; waits `wait_s` for the first only. May hold errors.

    `owner` gives the current assignment of a partition, by identity. Rebalance callbacks run inside
    both calls to the driver; within one it drops what became outdated, between the two we must.
    """
    first = cast("Record | None", consumer.poll(wait_s))
    if first is None:
        return []
    mine = owner(first.partition())
    rest = cast("list[Record]", consumer.consume(max_records - 1, 0) if max_records > 1 else [])
    return [first, *rest] if owner(first.partition()) is mine else rest


def known_end(consumer: Consumer, partition: TopicPartition) -> int:
    """The end of an assigned partition as the last answer to a fetch told it; 0 before the first.

    Asks nobody. Call it in the consumer's own thread.
    """
    found = consumer.get_watermark_offsets(partition, cached=True)
    return max(0, found[1]) if found else 0


def _common(settings: Settings, on_error: ErrorCallback | None = None) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "client.id": "handoff",
        "message.max.bytes": _MESSAGE_MAX_BYTES,
        "socket.keepalive.enable": True,
        # Small requests must not wait for Nagle's algorithm.
        "socket.nagle.disable": True,
        # Doubled with every try. The driver also waits for it between its first connection and the
        # one to the broker that it has learnt of by it: at each start of each client.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 1_000,
        "error_cb": on_error or (lambda _e: None),
        # Transport noise goes to `error_cb`; librdkafka would print it to stderr as well.
        "log_level": 2,
    }


class _Lines:
    """The driver's log, as a `logging.Logger` to it: the one place where it tells of every
    connection that broke with a request under way, also if it repeated that by itself."""

    def __init__(self, on_broken: Callable[[str], None]) -> None:
        self._on_broken = on_broken

    def log(self, _level: int, _template: str, facility: str, _client: str, text: str) -> None:
        if facility in _BROKEN:
            self._on_broken(text)


def transactional_producer(
    settings: Settings, transactional_id: str, on_broken: Callable[[str], None]
) -> Producer:
    """A producer for group commits. The fixed id lets a restarted worker abort its predecessor's
    open transaction at once (KIP-98).

    `on_broken` is told, within `poll`, that a connection broke or a request timed out.
    """
    return Producer(
        {
            **_common(settings),
            "logger": _Lines(on_broken),
            "log_level": _LOG_INFO,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": settings.transaction_timeout_ms,
            "partitioner": PARTITIONER,
            # A commit flushes, which ends all lingering: until then batches may fill.
            "linger.ms": 200,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )


def idempotent_producer(
    settings: Settings, on_error: ErrorCallback | None = None, *, delivery_timeout_ms: int = 30_000
) -> Producer:
    """A producer outside of transactions: acks=all, no duplicates from its own retries."""
    return Producer(
        {
            **_common(settings, on_error),
            "enable.idempotence": True,
            "partitioner": PARTITIONER,
            "linger.ms": 10,
            # A sender should hear that the cluster is away, not wait for five minutes.
            "delivery.timeout.ms": delivery_timeout_ms,
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
        # A connection that died in silence is noticed after so long, by default after a minute.
        # Requests that may take longer (joins) have time-outs of their own.
        "socket.timeout.ms": 15_000,
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


def reading_consumer(settings: Settings, group: str, *, prefetch_kb: int | None = None) -> Consumer:
    """A consumer for `assign` by hand: it joins no group and commits nothing.

    `prefetch_kb` bounds what it holds ready, as it comes from the broker: unpacked it is more.
    """
    config = {**_reading(settings, group, None), "enable.partition.eof": True}
    if prefetch_kb is not None:
        config["fetch.message.max.bytes"] = prefetch_kb * 1024 // 8
        config["queued.max.messages.kbytes"] = prefetch_kb
    return Consumer(config)


def admin_client(settings: Settings) -> AdminClient:
    return AdminClient(_common(settings))
