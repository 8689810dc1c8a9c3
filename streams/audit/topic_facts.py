"""Topics into facts: what each record claims, in rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from schemas.ids import is_job_id
from schemas.state import Status
from streams.audit.facts import Facts
from streams.audit.join_wire import Arrived, Began, Expected, Fired, Sent, read_join
from streams.audit.sources import Catalogue, Role, Source
from streams.audit.states import StateFact, quick_state, slow_state
from streams.audit.wire import Kind, forked_by, identify, pack, read_timer, unpack
from streams.config import Settings
from streams.deadletter.letters import read_letter
from streams.kafka import AdminClient, Place, Reading, Record
from streams.names import Names
from streams.state.fold import Rejected, StateRecord

Progress = Callable[[str, int, int], None]

#: Tables that a batch of records fills.
Rows = defaultdict[str, list[tuple[Any, ...]]]
_REASON_CHARS: Final = 200
_ENDS: Final = frozenset(status.value for status in Status if status.terminal)


class TopicFacts:
    """Reads topics into `facts`. `low` tells where each partition could still be seen."""

    def __init__(
        self,
        settings: Settings,
        admin: AdminClient,
        facts: Facts,
        catalogue: Catalogue,
        flow: str | None,
    ) -> None:
        self._settings, self._admin, self._facts = settings, admin, facts
        self._catalogue, self._flow = catalogue, flow
        self._by_name = {s.name: s for s in catalogue.sources}
        self._first_ms: dict[Place, int] = {}
        self._start: dict[Place, int] = {}
        self._state_ends: dict[Place, int] | None = None

    def read_states(self, progress: Progress) -> None:
        """job-state to its present end: the first call reads early states, a second late ones."""
        late = self._state_ends is not None
        reading = self._reading([self._catalogue.state], self._state_ends)
        self._read(reading, "job-state", progress, late)
        self._state_ends = reading.at

    def read_hand_offs(self, progress: Progress) -> None:
        """All other topics to their present ends."""
        roles = (Role.STAGE, Role.JOIN, Role.SINK, Role.LETTERS, Role.TIMERS)
        reading = self._reading(self._catalogue.of(*roles))
        self._read(reading, "hand-offs", progress, late=False)

    def write_parts(self, heads: dict[tuple[int, int], int | None]) -> None:
        """What can be seen of each partition; `heads` by number of the topic and partition."""
        self._facts.add(
            "part",
            [
                (
                    s.n,
                    p,
                    s.low[p],
                    self._start[s.name, p],
                    self._first_ms.get((s.name, p)),
                    heads.get((s.n, p)),
                )
                for s in self._catalogue.sources
                for p in sorted(s.low)
            ],
        )

    def _reading(
        self, sources: Sequence[Source], starts: Mapping[Place, int] | None = None
    ) -> Reading:
        if starts is None:
            starts = {(s.name, p): start for s in sources for p, start in s.start.items()}
        return Reading(self._settings, self._admin, [s.facts for s in sources], starts)

    def _read(self, reading: Reading, what: str, progress: Progress, late: bool) -> None:
        for batch in reading.batches():
            rows: Rows = defaultdict(list)
            # Records come in runs of one partition.
            for place, run in groupby(batch, _place_of):
                records = list(run)
                self._first_ms.setdefault(place, records[0].timestamp()[1])
                source = self._by_name[place[0]]
                if source.role is Role.STATE:
                    self._take_states(rows, source, records, late)
                elif source.role is Role.LETTERS:
                    rows["letter"] += [_letter(source, r, self._settings.names) for r in records]
                elif source.role is Role.TIMERS:
                    rows["timer"] += _timers(source, records)
                elif source.role is Role.JOIN:
                    self._take_joins(rows, source, records)
                else:
                    claims = _claims(source, records)
                    rows["record"] += claims
                    rows["branch"] += _branches(claims, records)
            for table, found in rows.items():
                self._facts.add(table, found)
            progress(what, reading.done, reading.total)
        if not late:
            self._start |= reading.low

    def _take_joins(self, rows: Rows, source: Source, records: Sequence[Record]) -> None:
        flow, topic_id = source.flow.encode(), source.facts.topic_id
        for record in records:
            found = read_join(record, flow, topic_id)
            place, ms = (source.n, record.partition(), record.offset()), record.timestamp()[1]
            if isinstance(found, Arrived):
                rows["arrival"].append((*place, *found, ms))
            elif isinstance(found, Expected):
                into = self._catalogue.stage(source.flow, found.stage)
                rows["expected"].append((*place, found.parent, found.seq, into, *found[3:], ms))
                rows["record"].append((*place, found.parent, found.seq, Kind.HAND_OFF, ms))
            elif isinstance(found, Began):
                runs = self._catalogue.stage(source.flow, found.stage)
                rows["began"].append((*place, found.parent, found.seq, runs, ms))
                rows["record"].append((*place, found.parent, found.seq, Kind.HAND_OFF, ms))
            elif isinstance(found, Fired):
                rows["fired"].append((*place, *found, ms))
                rows["record"].append((*place, found.parent, found.seq, Kind.TIMER, ms))
            elif isinstance(found, Sent):
                rows["sent"].append((*place, *found, ms))
                rows["record"].append((*place, found.parent, 0, Kind.SIGNAL, ms))
            else:
                rows["record"].append((*place, *found, ms))

    def _take_states(
        self, rows: Rows, source: Source, records: Sequence[Record], late: bool
    ) -> None:
        name, topic_id, flow = source.name, source.facts.topic_id, self._flow
        for record in records:
            value, ms = record.value(), record.timestamp()[1]
            if value is None:
                continue
            part, at, key = record.partition(), record.offset(), record.key()
            step: StateFact | Rejected | None = quick_state(key, value)
            if step is None:
                whole = StateRecord(name, topic_id, part, at, ms, key, value)
                step = slow_state(whole, value)
            if isinstance(step, Rejected):
                rows["finding"].append(_unreadable((source.n, part, at), key, step))
                # The projection keeps it aside, so the history need not have it.
                rows["reject"].append((part, at))
            elif flow is None or flow == step.flow:
                self._add_step(rows, (source.n, part, at), step, ms, late)

    def _add_step(
        self, rows: Rows, place: tuple[int, int, int], step: StateFact, ms: int, late: bool
    ) -> None:
        catalogue = self._catalogue
        targets = [catalogue.stage(step.flow, to) for to in step.to]
        job = pack(step.trace_id)
        for target in targets[1:]:
            rows["also"].append((job, step.seq, target))
        topic_id, part, at = step.consumed or (None, None, None)
        row = (
            *place,
            job,
            step.seq,
            catalogue.stage(step.flow, step.stage),
            step.status,
            catalogue.by_id(topic_id),
            part,
            at,
            targets[0] if targets else None,
            step.content,
            ms,
            None if step.produced_us is None else step.produced_us // 1000,
            step.parent,
            late,
            0,
        )
        rows["state"].append(row)
        if step.fork is not None:
            into = catalogue.stage(step.flow, step.fork.join)
            rows["fork"].append((*row[:6], into, step.fork.first, step.fork.expected, ms, late))
        if step.run is not None:
            runs, run = catalogue.stage(step.flow, step.run.stage), step.run
            rows["run_step"].append((*row[:7], runs, run.first, run.calls, run.ended, ms, late))
            rows["awaited"] += [(job, step.seq, *each) for each in run.waits]
        if "/" in step.trace_id and step.status in _ENDS:
            parent, _, number = step.trace_id.rpartition("/")
            rows["ended"].append((*row[:7], pack(parent), int(number), ms, late))


def _place_of(record: Record) -> Place:
    return record.topic(), record.partition()


def _claims(source: Source, records: Sequence[Record]) -> list[tuple[Any, ...]]:
    n, flow, topic_id = source.n, source.flow.encode(), source.facts.topic_id
    return [
        (n, r.partition(), r.offset(), *identify(r, flow, topic_id), r.timestamp()[1])
        for r in records
    ]


def _branches(
    claims: Sequence[tuple[Any, ...]], records: Sequence[Record]
) -> Iterator[tuple[Any, ...]]:
    """The first records of forked children among `claims` of `records`."""
    for claim, record in zip(claims, records, strict=True):
        topic, part, at, job, _, kind, ms = claim
        if kind is Kind.BRANCH:
            parent, _, number = unpack(job).rpartition("/")
            yield topic, part, at, job, pack(parent), int(number), forked_by(record), ms


def _timers(source: Source, records: Sequence[Record]) -> Iterator[tuple[Any, ...]]:
    for record in records:
        timer = read_timer(record)
        if timer is not None:
            yield (source.n, record.partition(), record.offset(), *timer)


def _letter(source: Source, record: Record, names: Names) -> tuple[Any, ...]:
    letter = read_letter(record, source.facts.topic_id, names)
    # Of another system, or of no step: it is counted and no more.
    job = pack(letter.job) if letter.job and letter.seq else None
    return source.n, record.partition(), record.offset(), job, letter.seq, letter.at_ms


def _unreadable(
    place: tuple[int, int, int], raw: bytes | None, rejected: Rejected
) -> tuple[Any, ...]:
    key = (raw or b"").decode(errors="replace")
    job = pack(key) if is_job_id(key) else None
    return ("unreadable_state", job, None, *place, rejected.reason[:_REASON_CHARS])
