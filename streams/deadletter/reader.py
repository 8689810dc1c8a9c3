"""Reads dead-letter topics, or others, to their ends as of the call. Joins no group and commits
nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

from streams.config import Settings
from streams.deadletter.letters import Letter, Place, read_letter
from streams.errors import BadSetup, BadWorld
from streams.kafka import (
    WORLD,
    AdminClient,
    Consumer,
    KafkaError,
    Record,
    TopicFacts,
    TopicPartition,
    admin_client,
    blame,
    describe_topics,
    end_offsets,
    low_watermarks,
    offsets_since,
    reading_consumer,
    topic_names,
)

#: How long a partition may give nothing before its end.
_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.2
_BATCH_RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Span:
    """What there is to read of one partition: offsets from `start` to before `end`.

    `low` is the first one that is still there; before it letters may have been.
    """

    topic: TopicFacts
    partition: int
    low: int
    start: int
    end: int


class Reader:
    """Dead letters of a cluster. All methods raise `BadWorld` when Kafka does not answer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = settings.names

    def topics(self, flow: str | None = None, stage: str | None = None) -> list[str]:
        """The dead-letter topics of this installation, of one flow or stage if named."""
        with admin_client(self._settings) as admin:
            every = topic_names(self._settings, admin)
        found = ((name, self._names.of_dead_letters(name)) for name in every)
        return [
            name
            for name, of in found
            if of is not None and flow in (None, of[0]) and stage in (None, of[1])
        ]

    def spans(self, topics: Iterable[str], since_ms: int | None = None) -> list[Span]:
        """What to read of `topics`. Raises `BadSetup` for one that does not exist."""
        with admin_client(self._settings) as admin:
            wanted = list(topics)
            facts = describe_topics(self._settings, admin, wanted)
            for name in wanted:
                if name not in facts:
                    raise BadSetup(
                        f"Topic {name} does not exist; `handoff topics plan` lists ours."
                    )
            return [span for f in facts.values() for span in self._spans(admin, f, since_ms)]

    def _spans(self, admin: AdminClient, topic: TopicFacts, since_ms: int | None) -> list[Span]:
        low = low_watermarks(self._settings, admin, topic)
        ends = end_offsets(self._settings, admin, topic)
        starts: Mapping[int, int] = low
        if since_ms is not None:
            found = offsets_since(self._settings, admin, topic, since_ms)
            starts = {p: max(low[p], n) if n >= 0 else ends[p] for p, n in found.items()}
        return [Span(topic, p, low[p], starts[p], ends[p]) for p in sorted(low)]

    def read(self, spans: Iterable[Span]) -> Iterator[Letter]:
        """All letters of `spans`, in the order of offsets within each partition."""
        wanted = list(spans)
        topic_ids = {span.topic.name: span.topic.topic_id for span in wanted}
        for record in self.records(wanted):
            yield read_letter(record, topic_ids[record.topic()], self._names)

    def records(self, spans: Iterable[Span]) -> Iterator[Record]:
        """All records of `spans`, which may be of any topic, as they are. Stop when you have seen
        enough: memory is bounded by what is fetched ahead."""
        by_topic: dict[str, list[Span]] = {}
        for span in spans:
            if span.start < span.end:
                by_topic.setdefault(span.topic.name, []).append(span)
        for parts in by_topic.values():
            yield from self._records(parts)

    def at(self, places: Iterable[Place]) -> Iterator[Letter]:
        """The letters that lie at `places`; those that are not there are left out."""
        wanted = set(places)
        if not wanted:
            return
        spans = []
        for span in self.spans(sorted({p.topic for p in wanted})):
            offsets = [
                p.offset
                for p in wanted
                if (p.topic, p.partition) == (span.topic.name, span.partition)
            ]
            if offsets:
                start, end = max(span.low, min(offsets)), min(span.end, max(offsets) + 1)
                spans.append(Span(span.topic, span.partition, span.low, start, end))
        for letter in self.read(spans):
            if letter.place in wanted:
                yield letter

    def _records(self, parts: list[Span]) -> Iterator[Record]:
        ends = {span.partition: span.end for span in parts}
        with self._assigned(parts) as consumer:
            quiet_since = time.monotonic()
            while ends:
                with blame(self._settings, f"reading {parts[0].topic.name}"):
                    batch = cast("list[Record]", consumer.consume(_BATCH_RECORDS, _POLL_S))
                if not batch and time.monotonic() - quiet_since > _PATIENCE_S:
                    raise BadWorld(
                        f"Kafka gave nothing of {parts[0].topic.name} for {_PATIENCE_S:.0f} s, and "
                        "its end is not reached. Try again."
                    )
                for record in batch:
                    if record.partition() in ends and self._is_letter(record, ends):
                        yield record
                if batch:
                    # The caller may have taken its time with them.
                    quiet_since = time.monotonic()

    @contextmanager
    def _assigned(self, parts: list[Span]) -> Iterator[Consumer]:
        consumer = reading_consumer(self._settings, f"{parts[0].topic.name}.reader")
        try:
            consumer.assign([TopicPartition(s.topic.name, s.partition, s.start) for s in parts])
            yield consumer
        finally:
            consumer.close()

    def _is_letter(self, record: Record, ends: dict[int, int]) -> bool:
        """False for what only says that a partition ends; partitions that are done leave `ends`."""
        partition, error = record.partition(), record.error()
        if error is None:
            wanted = record.offset() < ends[partition]
            if record.offset() + 1 >= ends[partition]:
                del ends[partition]
            return wanted
        if error.code() == KafkaError._PARTITION_EOF:
            # Markers of transactions lie before the end, and are no records.
            if record.offset() >= ends[partition]:
                del ends[partition]
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise BadWorld(
                f"Records of {record.topic()}[{partition}] expired while they were read. Try again."
            )
        elif error.code() not in WORLD:
            raise BadSetup(f"Kafka refused to give {record.topic()}: {error.str()}.")
        return False
