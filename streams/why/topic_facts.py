"""What Kafka knows: where a job's record lies, how many are before it, and who works there.

Topics are read past their group's committed position, by assignment, read-committed, in bounded
memory, and no further than the record. Nothing is written, no group is joined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError

from schemas.state import JobState
from streams.config import Settings
from streams.deadletter.letters import Letter
from streams.deadletter.reader import Reader, Span
from streams.kafka import (
    GroupFacts,
    Record,
    TopicFacts,
    admin_client,
    committed_offsets,
    describe_settled_group,
    partition_of,
)
from streams.names import Names
from streams.offsets import Range, decode_map
from streams.runtime.delivery import Delivery
from streams.runtime.tracker import Tracker
from streams.why.facts import Looked, State

#: So many records of a topic are read at most: a few seconds.
LIMIT: Final = 200_000
#: Between two looks at a group's position, to see how fast it moves.
_RATE_S: Final = 1.0
#: A dead letter lies near the time of its state, which is another clock's.
_LETTER_MARGIN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """`job` is an id, or a prefix of one if not `exact`. `step` is what its live record is to do;
    None: any."""

    job: str
    exact: bool
    step: int | None = None

    def is_by(self, job: str) -> bool:
        """A prefix means jobs that begin so, and not the children of these."""
        if self.exact:
            return job == self.job
        return job.startswith(self.job) and "/" not in job[len(self.job) :]


@dataclass(frozen=True, slots=True)
class Part:
    """One partition of a stage. `head` is its group's committed offset, None if it has none."""

    span: Span
    head: int | None
    finished: tuple[Range, ...]

    @property
    def passed(self) -> int:
        """How many offsets are done; grows as the group moves."""
        return (self.head or 0) + sum(end - start for start, end in self.finished)


@dataclass(frozen=True, slots=True)
class Hit:
    """A record of a wanted job that is not finished, and how many such lie `ahead` of it."""

    flow: str
    stage: str
    job: str
    step: int
    part: Part
    offset: int
    written_at: datetime
    ahead: int


@dataclass(frozen=True, slots=True)
class Search:
    """What was found of a stage's topic. `rest`: parts whose limit was reached before the wanted
    record, with the records that lie before it at the least."""

    hits: tuple[Hit, ...]
    looked: Looked
    rest: tuple[tuple[Part, int], ...] = ()


class Topics:
    """The topics of an installation. All methods raise `BadWorld` when Kafka does not answer, and
    `BadSetup` for an offset map that workers would refuse, too."""

    def __init__(self, settings: Settings, limit: int = LIMIT) -> None:
        self._settings, self._limit = settings, limit
        self._names = settings.names
        self._reader = Reader(settings)

    def stages(self) -> list[tuple[str, str]]:
        """Flow and stage of every stage: it is known by its dead-letter topic."""
        found = map(self._names.of_dead_letters, self._reader.topics())
        return sorted(pair for pair in found if pair is not None)

    def search(self, flow: str, stage: str, wanted: Wanted, *, by_key: bool = True) -> Search:
        """Look for `wanted` past the position of the stage's group.

        `by_key`: only where the id, as a key, would put it; a submission without such a key may lie
        in any partition.
        """
        topic = self._names.stage_topic(flow, stage)
        spans = self._reader.spans([topic])
        lows = tuple(s.low for s in spans)
        if wanted.exact and by_key:
            at = partition_of(wanted.job.encode(), len(spans))
            spans = [s for s in spans if s.partition == at]
        key = wanted.job.encode() if wanted.exact and by_key else None
        lanes = {p.span.partition: Lane(p) for p in self.parts(spans)}
        hits: list[Hit] = []
        read, whole = 0, True
        for record in self._reader.records([lane.part.span for lane in lanes.values()]):
            if read == self._limit:
                whole = False
                break
            read += 1
            d = lanes[record.partition()].deliver(record)
            # Quick: most records are of other jobs.
            if d is None or key not in (None, record.key()):
                continue
            d.identify(flow.encode())
            if wanted.is_by(d.job_id) and wanted.step in (None, d.seq):
                hits.append(_hit(flow, stage, lanes[record.partition()], d))
                if wanted.exact:
                    break
        rest = () if whole else tuple((lane.part, lane.unfinished) for lane in lanes.values())
        return Search(tuple(hits), Looked(topic, read, lows, whole), rest)

    def parts(self, spans: list[Span]) -> list[Part]:
        """`spans` of one stage's topic, and how far its group is in each."""
        if not spans:
            return []
        topic = spans[0].topic
        # The group of a stage has the name of its topic.
        committed = committed_offsets(self._settings, topic.name, topic)
        parts = []
        for span in spans:
            tp = committed.get(span.partition)
            if tp is None:
                parts.append(Part(span, None, ()))
                continue
            finished = self._finished(topic, span.partition, tp.offset, tp.metadata)
            start = min(max(span.low, tp.offset), span.end)
            parts.append(Part(replace(span, start=start), tp.offset, finished))
        return parts

    def _finished(
        self, topic: TopicFacts, partition: int, head: int, metadata: str | None
    ) -> tuple[Range, ...]:
        if not metadata:
            # A tool moved it; what is finished past it, workers ask the projection.
            return ()
        where = f"group {topic.name} on {topic.name}[{partition}]"
        found = decode_map(metadata, topic_id=topic.topic_id, committed=head, where=where)
        return tuple(found)

    def part(self, flow: str, stage: str, job: str) -> Part:
        """The partition of a stage's topic that the id of a job, as a key, puts it into."""
        spans = self._reader.spans([self._names.stage_topic(flow, stage)])
        at = partition_of(job.encode(), len(spans))
        (part,) = self.parts([s for s in spans if s.partition == at])
        return part

    def group(self, part: Part) -> GroupFacts:
        """Who works there; waits a little while partitions are handed out."""
        topic = part.span.topic.name
        with admin_client(self._settings) as admin:
            return describe_settled_group(self._settings, admin, topic, topic)

    def rate(self, part: Part) -> float:
        """Offsets per second that the group finishes in that partition, seen for a second."""
        (before,) = self.parts([part.span])
        began = time.monotonic()
        time.sleep(_RATE_S)
        (after,) = self.parts([part.span])
        return max(0, after.passed - before.passed) / (time.monotonic() - began)

    # -- other topics ------------------------------------------------------------------------

    def spans(self, topic: str) -> list[Span]:
        """All of a topic, by partition. Raises `BadSetup` if there is none."""
        return self._reader.spans([topic])

    def job_state(self) -> list[Span]:
        """All of job-state."""
        return self.spans(self._names.job_state_topic)

    def states(self, spans: Iterable[Span], wanted: Wanted) -> tuple[list[State], bool]:
        """States of `wanted` in `spans`, in their order; False: there are more than were read."""
        found: list[State] = []
        for read, record in enumerate(self._reader.records(spans)):
            if read == self._limit:
                return found, False
            key = (record.key() or b"").decode(errors="replace")
            if wanted.is_by(key) and (state := _state(record)) is not None:
                found.append(state)
        return found, True

    def unread_timers(self, job: str, position: Callable[[TopicFacts, int], int]) -> int:
        """Offsets of the timers topic past `position`, in the partition of the job's timers."""
        topic = self._names.timers_topic
        spans = self._reader.spans([topic])
        span = spans[partition_of(job.encode(), len(spans))]
        return max(0, span.end - max(span.low, position(span.topic, span.partition)))

    def letter(self, state: State) -> Letter | None:
        """The dead letter of the job's last step."""
        topics = self._reader.topics(state.flow, state.stage)
        since_ms = int((state.updated_at.timestamp() - _LETTER_MARGIN_S) * 1000)
        spans = self._reader.spans(topics, max(0, since_ms))
        for read, letter in enumerate(self._reader.read(spans)):
            if (letter.job, letter.seq) == (state.job, state.seq):
                return letter
            if read == self._limit:
                break
        return None


class Lane:
    """One partition while it is read, as a worker would begin there."""

    def __init__(self, part: Part) -> None:
        topic = part.span.topic
        self.part = part
        self.unfinished = 0
        self._tracker = Tracker(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=part.span.partition,
            head=part.span.start,
            metadata="",
            finished=part.finished,
        )

    def deliver(self, record: Record) -> Delivery | None:
        """None for a record that is finished, by the offset map."""
        number = self._tracker.deliver(record.offset())
        if number is None:
            return None
        self.unfinished += 1
        return Delivery(record, self._tracker, number, 0)


def owner_slot(group: GroupFacts, name: str, partition: int) -> int | None:
    """Slot of the member of the group `name` that owns the partition; None: nobody does; -1: it is
    no worker of ours."""
    member = group.owners.get(partition)
    if member is None:
        return None
    slot = Names.slot_of(name, member.instance)
    return -1 if slot is None else slot


def _hit(flow: str, stage: str, lane: Lane, d: Delivery) -> Hit:
    return Hit(
        flow=flow,
        stage=stage,
        job=d.job_id,
        step=d.seq,
        part=lane.part,
        offset=d.offset,
        written_at=datetime.fromtimestamp(max(0, d.produced_us) / 1e6, UTC),
        ahead=lane.unfinished - 1,
    )


def _state(record: Record) -> State | None:
    """None for a tombstone and for what is no state: the projector reports those."""
    try:
        found = JobState.model_validate_json(record.value() or b"")
    except ValidationError:
        return None
    return State(
        job=found.trace_id,
        flow=found.flow,
        stage=found.stage,
        status=found.status,
        seq=found.seq,
        attempts=found.attempts,
        to=found.to,
        error=found.error,
        wakes_at=found.wakes_at,
        updated_at=found.updated_at,
        projected=False,
    )
