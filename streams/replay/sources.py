"""Where cases come from: topics by assignment, Postgres for what became of the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from streams.config import Settings
from streams.deadletter.actions import Settled
from streams.deadletter.find import choose
from streams.deadletter.letters import Letter
from streams.deadletter.reader import Reader
from streams.errors import BadSetup
from streams.flow import Flow
from streams.kafka import (
    AdminClient,
    Place,
    Reading,
    TopicFacts,
    admin_client,
    describe_topics,
    high_watermarks,
    low_watermarks,
    offsets_since,
)
from streams.replay.facts import Case, StoredRecord, stored
from streams.replay.lookup import Consumed, Lookup
from streams.replay.selection import Bound, OfJobs, OfLetters, OfTopic, OfTrace
from streams.state.queries import find_job, list_jobs

_PAGE_JOBS: Final = 1_000


@dataclass(slots=True)
class Source:
    """`batches` gives cases until there are none; call it once. `total` and `read` are in offsets
    or records, for progress. `remarks` are sentences about what lies beyond the horizon."""

    batches: Callable[[], Iterator[list[Case]]]
    total: Callable[[], int]
    read: Callable[[], int]
    remarks: list[str] = field(default_factory=list)


class TopicSource:
    """A range of one stage's topic, up to the high watermarks as of now."""

    def __init__(self, settings: Settings, flow: Flow, lookup: Lookup, chosen: OfTopic) -> None:
        self._lookup = lookup
        self._stage = _stage_of(chosen.topic, flow, settings)
        topic = settings.names.stage_topic(flow.name, self._stage)
        admin = admin_client(settings)
        facts = describe_topics(settings, admin, [topic]).get(topic)
        if facts is None:
            raise BadSetup(f"Topic {topic} does not exist; `handoff topics plan` lists ours.")
        if chosen.partition is not None and chosen.partition >= facts.partitions:
            raise BadSetup(f"Topic {topic} has partitions 0 to {facts.partitions - 1}.")
        self._topic = facts
        low = low_watermarks(settings, admin, facts)
        high = high_watermarks(settings, admin, facts)
        start = _bounds(settings, admin, facts, chosen.start, low, high)
        end = _bounds(settings, admin, facts, chosen.end, high, high)
        self.remarks = _expired(topic, low, start, chosen)
        places = [p for p in low if chosen.partition in (None, p)]
        starts = {p: max(low[p], start[p]) for p in places}
        ends = {p: max(starts[p], min(high[p], end[p])) for p in places}
        self._reading = Reading(
            settings, admin, [facts], _keyed(topic, starts), _keyed(topic, ends)
        )

    def source(self) -> Source:
        reading = self._reading
        return Source(self._batches, lambda: reading.total, lambda: reading.done, self.remarks)

    def _batches(self) -> Iterator[list[Case]]:
        began = dict(self._reading.low)
        for batch in self._reading.batches():
            records = [(self._stage, stored(r, self._topic.topic_id)) for r in batch]
            yield self._lookup.cases(records)
        for place, low in self._reading.low.items():
            if low > began[place]:
                self.remarks.append(
                    f"Offsets {began[place]} to {low - 1} of {place[0]}[{place[1]}] expired while "
                    "they were read."
                )


def _keyed(topic: str, offsets: dict[int, int]) -> dict[Place, int]:
    return {(topic, p): offset for p, offset in offsets.items()}


def _stage_of(name: str, flow: Flow, settings: Settings) -> str:
    """The stage whose topic is meant: by its full name, or without the installation's prefix."""
    for stage in flow.stages:
        topic = settings.names.stage_topic(flow.name, stage.name)
        if name in (topic, topic.removeprefix(settings.prefix)):
            return stage.name
    joins = settings.names.join_topic(flow.name)
    if flow.has_join and name in (joins, joins.removeprefix(settings.prefix)):
        raise BadSetup(
            f"Topic {joins} is read by the join agent, which runs no handler. Replay the stages "
            "that fork, wait or are orchestrations, or those that are handed the results."
        )
    known = ", ".join(settings.names.stage_topic(flow.name, s.name) for s in flow.stages)
    raise BadSetup(f"No stage of flow {flow.name} reads topic {name}; its stages read {known}.")


def _bounds(
    settings: Settings,
    admin: AdminClient,
    topic: TopicFacts,
    bound: Bound | None,
    otherwise: dict[int, int],
    ends: dict[int, int],
) -> dict[int, int]:
    if bound is None:
        return otherwise
    if bound.at_ms is None:
        return dict.fromkeys(otherwise, bound.offset or 0)
    found = offsets_since(settings, admin, topic, bound.at_ms)
    return {p: n if n >= 0 else ends[p] for p, n in found.items()}


def _expired(topic: str, low: dict[int, int], start: dict[int, int], chosen: OfTopic) -> list[str]:
    """Offsets that were asked for and are no more; without a start the topic's is the start."""
    told = chosen.start is not None and chosen.start.offset is not None
    return [
        f"Offsets {start[p]} to {low[p] - 1} of {topic}[{p}] have expired."
        for p in sorted(low)
        if told and chosen.partition in (None, p) and start[p] < low[p]
    ]


class PlacesSource:
    """The records of single steps: of a trace, or of all jobs that fit a filter."""

    def __init__(
        self, settings: Settings, lookup: Lookup, chosen: OfTrace | OfJobs, flow: Flow
    ) -> None:
        self._settings, self._lookup = settings, lookup
        self._known = {s.name for s in flow.stages}
        self._flow = flow
        self._admin = admin_client(settings)
        self._jobs = self._ids(chosen)
        self._done = 0

    def _ids(self, chosen: OfTrace | OfJobs) -> list[str]:
        conn = self._lookup.conn
        if isinstance(chosen, OfTrace):
            job = find_job(conn, chosen.job).trace_id
            return [job, *(self._lookup.descendants(job) if chosen.children else ())]
        found, after = [], None
        while page := list_jobs(
            conn,
            status=chosen.status,
            stage=chosen.stage,
            flow=chosen.flow,
            since=chosen.since,
            after=after,
            limit=_PAGE_JOBS,
        ):
            found += [job.trace_id for job in page]
            after = page[-1].cursor
        return found

    def source(self) -> Source:
        return Source(self._batches, lambda: len(self._jobs), lambda: self._done)

    def _batches(self) -> Iterator[list[Case]]:
        for first in range(0, len(self._jobs), _PAGE_JOBS):
            jobs = self._jobs[first : first + _PAGE_JOBS]
            yield self._page(self._lookup.consumed_by(jobs))
            self._done += len(jobs)

    def _page(self, wanted: Sequence[Consumed]) -> list[Case]:
        records, reasons = fetch(self._settings, self._admin, wanted)
        found = [(c.stage, records[c.spot]) for c in wanted if c.spot in records]
        gone = [self._lookup.gone(c, reasons[c.place]) for c in wanted if c.spot not in records]
        return [*self._lookup.cases(found), *gone]


def fetch(
    settings: Settings, admin: AdminClient, wanted: Sequence[Consumed]
) -> tuple[dict[object, StoredRecord], dict[str, str]]:
    """The records by `Spot`, and for each place without one the reason."""
    topics = describe_topics(settings, admin, sorted({c.topic for c in wanted if c.topic}))
    low = {name: low_watermarks(settings, admin, facts) for name, facts in topics.items()}
    reasons: dict[str, str] = {}
    spots: set[object] = set()
    starts: dict[Place, int] = {(n, p): -1 for n, parts in low.items() for p in parts}
    ends = dict(starts)
    for c in wanted:
        why = _why_gone(c, topics, low)
        reasons[c.place] = why or "its record is not there"
        if why or c.spot is None:
            continue
        spots.add(c.spot)
        place, offset = (c.topic, c.spot.partition), c.spot.offset
        starts[place] = offset if starts[place] < 0 else min(starts[place], offset)
        ends[place] = max(ends[place], offset + 1)
    ends = {place: max(end, 0) for place, end in ends.items()}
    found: dict[object, StoredRecord] = {}
    reading = Reading(settings, admin, list(topics.values()), starts, ends)
    for batch in reading.batches():
        for record in batch:
            kept = stored(record, topics[record.topic()].topic_id)
            if kept.spot in spots:
                found[kept.spot] = kept
    return found, reasons


def _why_gone(
    c: Consumed, topics: dict[str, TopicFacts], low: dict[str, dict[int, int]]
) -> str | None:
    if c.spot is None:
        return "its step does not tell which record it consumed"
    if c.topic not in topics:
        return f"topic {c.topic} does not exist any more"
    if topics[c.topic].topic_id != c.spot.topic_id:
        return f"topic {c.topic} was made anew since"
    if c.spot.offset < low[c.topic].get(c.spot.partition, 0):
        return "its record has expired"
    return None


class LettersSource:
    """The original records that open dead letters hold; they do not expire."""

    def __init__(self, settings: Settings, lookup: Lookup, chosen: OfLetters, flow: Flow) -> None:
        self._settings, self._lookup, self._flow = settings, lookup, flow
        self._reader = Reader(settings)
        settled = Settled(lookup.conn)
        heads = choose(self._reader, chosen.choice, settled.__contains__)
        self._places = [head.place for head in heads]
        self._done = 0
        self._admin = admin_client(settings)

    def source(self) -> Source:
        return Source(self._batches, lambda: len(self._places), lambda: self._done)

    def _batches(self) -> Iterator[list[Case]]:
        for first in range(0, len(self._places), _PAGE_JOBS):
            page = self._places[first : first + _PAGE_JOBS]
            letters = list(self._reader.at(page))
            yield self._cases(letters)
            self._done += len(page)

    def _cases(self, letters: Sequence[Letter]) -> list[Case]:
        names = sorted({letter.origin.topic for letter in letters} - {""})
        topics = describe_topics(self._settings, self._admin, names)
        usable, strange = [], []
        for letter in letters:
            facts = topics.get(letter.origin.topic)
            record = None if facts is None else _original(letter, facts)
            if record is None or letter.flow != self._flow.name:
                strange.append(self._strange(letter))
            else:
                usable.append((letter.stage, record))
        return [*self._lookup.cases(usable), *strange]

    def _strange(self, letter: Letter) -> Case:
        why = (
            f"it is of flow {letter.flow or 'unknown'}"
            if letter.flow != self._flow.name
            else "it does not tell where its record lay, or that topic is gone"
        )
        return Case(letter.flow, letter.stage, str(letter.place), None, None, because=why)


def _original(letter: Letter, topic: TopicFacts) -> StoredRecord | None:
    origin = letter.origin
    if origin.partition is None or origin.offset is None:
        return None
    return StoredRecord(
        origin.topic,
        topic.topic_id,
        origin.partition,
        origin.offset,
        origin.timestamp_ms or 0,
        letter.key,
        letter.value,
        letter.headers,
    )
