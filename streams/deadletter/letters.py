"""What a dead letter says, whoever wrote it. Pure.

Each system adds headers to the original record and leaves key and value alone:

| system             | names and source                                                         |
|--------------------|--------------------------------------------------------------------------|
| handoff            | those of KIP-1191 and ours: `schemas.headers`                            |
| Kafka share groups | `__dlq.errors.*`: KIP-1191, ShareGroupDLQStateManager                    |
| Kafka Streams      | `__streams.errors.*`: KIP-1034, streams.errors.…ExceptionHandlerUtils    |
| Kafka Connect      | `__connect.errors.*`: KIP-298, connect.runtime.…DeadLetterQueueReporter  |
| Spring Kafka       | `kafka_dlt-*`: KafkaHeaders, DeadLetterPublishingRecoverer; its numbers  |
|                    | are Java's, big-endian, all others are text                              |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from schemas import headers as h
from schemas.ids import is_job_id
from streams.kafka import Record
from streams.names import Names

Header = tuple[str, bytes | None]

_PLACE = re.compile(r"([A-Za-z0-9._-]{1,249})(?:/(\d{1,10})/|\[(\d{1,10})\]@)(\d{1,19})")
#: Lengths of a Java int and long.
_BINARY_BYTES = (4, 8)
_MAX_SEQ = 2**31 - 2


class Place(NamedTuple):
    """Where a record lies; written `topic/partition/offset`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def parse_place(text: str) -> Place | None:
    """`topic/partition/offset` or `topic[partition]@offset`; None for anything else, so also for
    the id of a child job, which looks alike."""
    found = _PLACE.fullmatch(text)
    if found is None or is_job_id(text):
        return None
    return Place(found[1], int(found[2] or found[3]), int(found[4]))


class System(StrEnum):
    """Who wrote a dead letter, by its headers."""

    HANDOFF = "handoff"
    SHARE_GROUP = "share-group"
    STREAMS = "kafka-streams"
    CONNECT = "kafka-connect"
    SPRING = "spring-kafka"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _HeaderSet:
    """How one system spells what it knows; all its names begin with `prefix`.

    It always writes `topic`: the last one in a record marks the system that wrote last.
    """

    system: System
    prefix: str
    topic: str
    partition: str
    offset: str
    kind: tuple[str, ...]
    message: tuple[str, ...]
    group: str = ""
    timestamp: str = ""
    deliveries: str = ""


_KIP_1191: Final = _HeaderSet(
    System.SHARE_GROUP,
    "__dlq.errors.",
    topic=h.DLQ_TOPIC,
    partition=h.DLQ_PARTITION,
    offset=h.DLQ_OFFSET,
    kind=(h.DLQ_ERROR,),
    message=(h.DLQ_MESSAGE,),
    group=h.DLQ_GROUP,
    timestamp=h.DLQ_TIMESTAMP,
    deliveries=h.DLQ_DELIVERY_COUNT,
)
_SETS: Final = (
    _KIP_1191,
    _HeaderSet(
        System.STREAMS,
        "__streams.errors.",
        topic="__streams.errors.topic",
        partition="__streams.errors.partition",
        offset="__streams.errors.offset",
        kind=("__streams.errors.exception",),
        message=("__streams.errors.message",),
    ),
    _HeaderSet(
        System.CONNECT,
        "__connect.errors.",
        topic="__connect.errors.topic",
        partition="__connect.errors.partition",
        offset="__connect.errors.offset",
        kind=("__connect.errors.exception.class.name", "__connect.errors.stage"),
        message=("__connect.errors.exception.message",),
        group="__connect.errors.connector.name",
    ),
    _HeaderSet(
        System.SPRING,
        "kafka_dlt-",
        topic="kafka_dlt-original-topic",
        partition="kafka_dlt-original-partition",
        offset="kafka_dlt-original-offset",
        # The outermost exception is always Spring's own wrapper.
        kind=(
            "kafka_dlt-exception-cause-fqcn",
            "kafka_dlt-exception-fqcn",
            "kafka_dlt-key-exception-fqcn",
        ),
        message=("kafka_dlt-exception-message", "kafka_dlt-key-exception-message"),
        group="kafka_dlt-original-consumer-group",
        timestamp="kafka_dlt-original-timestamp",
    ),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The record that failed, as its dead letter tells; None or "" for what it does not tell."""

    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    #: The consumer group; for Kafka Connect its connector.
    group: str = ""
    deliveries: int | None = None


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter, complete.

    `flow` and `stage` are those whose dead-letter topic holds it, "" in any other topic. `job` and
    `seq` (the step that failed) are what a stage of ours wrote, "" and 0 elsewhere. `key`, `value`
    and `headers` are the original record's; `told` is what the writer of the letter added.
    """

    place: Place
    topic_id: UUID
    #: When it was written, epoch milliseconds.
    at_ms: int
    system: System
    flow: str
    stage: str
    job: str
    seq: int
    kind: str
    message: str
    origin: Origin
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    told: tuple[Header, ...]

    @property
    def where(self) -> str:
        """What a person calls the place of the failure: `flow.stage`, or a topic."""
        return f"{self.flow}.{self.stage}" if self.flow else self.origin.topic or self.place.topic


def read_letter(record: Record, topic_id: UUID, names: Names) -> Letter:
    """The letter that `record` is. Raises nothing, whatever it holds."""
    place = Place(record.topic(), record.partition(), record.offset())
    known, headers, told = _split(_headers(record))
    facts = dict(told)
    flow, stage = names.of_dead_letters(place.topic) or ("", "")
    job = _text(facts.get(h.DLQ_JOB))
    ours = known is _KIP_1191 and is_job_id(job)
    system = System.UNKNOWN if known is None else known.system
    return Letter(
        place=place,
        topic_id=topic_id,
        at_ms=max(0, record.timestamp()[1]),
        system=System.HANDOFF if ours else system,
        flow=flow,
        stage=stage,
        job=job if ours else "",
        seq=_seq(facts) if ours else 0,
        kind=_first(facts, known.kind) if known else "",
        message=_first(facts, known.message) if known else "",
        origin=_origin(facts, known) if known else Origin(),
        key=record.key(),
        value=record.value(),
        headers=headers,
        told=told,
    )


def _headers(record: Record) -> Sequence[Header]:
    try:
        return record.headers() or ()
    except (UnicodeDecodeError, ValueError):
        # The driver cannot give headers whose names are no UTF-8.
        return ()


def _split(
    headers: Sequence[Header],
) -> tuple[_HeaderSet | None, tuple[Header, ...], tuple[Header, ...]]:
    """Who wrote the letter last, the original's headers, and what that writer added.

    A stage of ours adds one block at the end, so what comes before it is the original, even where
    that was a dead letter itself. Others add here and there: theirs is what bears their prefix.
    """
    last = {name: n for n, (name, _) in enumerate(headers)}
    known = max(_SETS, key=lambda s: last.get(s.topic, -1))
    if known.topic not in last:
        return None, tuple(headers), ()
    begin = last[known.topic]
    block = tuple(headers[begin:])
    if known is _KIP_1191 and h.DLQ_JOB in dict(block):
        return known, tuple(headers[:begin]), block
    told = tuple(x for x in headers if x[0].startswith(known.prefix))
    return known, tuple(x for x in headers if not x[0].startswith(known.prefix)), told


def _origin(facts: dict[str, bytes | None], known: _HeaderSet) -> Origin:
    return Origin(
        topic=_text(facts.get(known.topic)),
        partition=number(facts.get(known.partition)),
        offset=number(facts.get(known.offset)),
        timestamp_ms=number(facts.get(known.timestamp)),
        group=_text(facts.get(known.group)),
        deliveries=number(facts.get(known.deliveries)),
    )


def _seq(facts: dict[str, bytes | None]) -> int:
    seq = number(facts.get(h.DLQ_SEQ))
    return seq if seq is not None and 0 < seq < _MAX_SEQ else 0


def _first(facts: dict[str, bytes | None], names: Sequence[str]) -> str:
    return next((_text(facts[name]) for name in names if facts.get(name)), "")


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="backslashreplace")


def number(raw: bytes | None) -> int | None:
    """A number as digits, or as Java's int or long, big-endian; None if it is neither.

    Digits first: a binary number that looks like digits would be a partition beyond 800 million.
    """
    if not raw:
        return None
    if raw.removeprefix(b"-").isdigit() and len(raw) < 20:
        return int(raw)
    return int.from_bytes(raw, "big", signed=True) if len(raw) in _BINARY_BYTES else None
