"""Topics into facts: what each record claims, in rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from schemas.ids import is_job_id
from streams.audit.content import content
from streams.audit.facts import Facts
from streams.audit.reading import Place, Reading
from streams.audit.sources import Catalogue, Role, Source
from streams.audit.wire import identify, pack, read_timer
from streams.config import Settings
from streams.deadletter.letters import read_letter
from streams.kafka import AdminClient, Record
from streams.names import Names
from streams.state.fold import Rejected, StateRecord, Step, parse

Progress = Callable[[str, int, int], None]

#: Tables that a batch of records fills.
Rows = dict[str, list[tuple[Any, ...]]]
_REASON_CHARS: Final = 200


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
        sources = [self._catalogue.state]
        reading = Reading(self._settings, self._admin, sources, starts=self._state_ends)
        self._read(reading, "job-state", progress, late)
        self._state_ends = reading.at

    def read_hand_offs(self, progress: Progress) -> None:
        """All other topics to their present ends."""
        roles = (Role.STAGE, Role.SINK, Role.LETTERS, Role.TIMERS)
        reading = Reading(self._settings, self._admin, self._catalogue.of(*roles))
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

    def _read(self, reading: Reading, what: str, progress: Progress, late: bool) -> None:
        for batch in reading.batches():
            rows: Rows = {}
            for record in batch:
                source = self._by_name[record.topic()]
                place = (source.name, record.partition())
                if place not in self._first_ms:
                    self._first_ms[place] = record.timestamp()[1]
                self._take(rows, source, record, late)
            for table, found in rows.items():
                self._facts.add(table, found)
            progress(what, reading.done, reading.total)
        if not late:
            self._start |= reading.low

    def _take(self, rows: Rows, source: Source, record: Record, late: bool) -> None:
        match source.role:
            case Role.STATE:
                self._take_state(rows, source, record, late)
            case Role.LETTERS:
                _add(rows, "letter", _letter(source, record, self._settings.names))
            case Role.TIMERS:
                timer = read_timer(record)
                if timer is not None:
                    _add(rows, "timer", (source.n, record.partition(), record.offset(), *timer))
            case _:
                claim = identify(record, source.flow.encode(), source.facts.topic_id)
                _add(
                    rows,
                    "record",
                    (
                        source.n,
                        record.partition(),
                        record.offset(),
                        claim.job,
                        claim.seq,
                        int(claim.kind),
                        record.timestamp()[1],
                    ),
                )

    def _take_state(self, rows: Rows, source: Source, record: Record, late: bool) -> None:
        value = record.value()
        if value is None:
            return
        topic_id, ms = source.facts.topic_id, record.timestamp()[1]
        at = StateRecord(
            source.name, topic_id, record.partition(), record.offset(), ms, record.key(), value
        )
        step = parse(at, value)
        if isinstance(step, Rejected):
            _add(rows, "finding", _unreadable(source, record, step))
            # The projection keeps it aside, so the history need not have it.
            _add(rows, "reject", (record.partition(), record.offset()))
        elif self._flow in (None, step.flow):
            self._add_step(rows, source.n, step, ms, late)

    def _add_step(self, rows: Rows, n: int, step: Step, ms: int, late: bool) -> None:
        catalogue = self._catalogue
        targets = [catalogue.stage(step.flow, to) for to in step.handed_to]
        job = pack(step.trace_id)
        for target in targets[1:]:
            _add(rows, "also", (job, step.seq, target))
        row = (
            n,
            step.partition,
            step.offset,
            job,
            step.seq,
            catalogue.stage(step.flow, step.stage),
            step.status,
            catalogue.by_id(step.consumed_topic_id),
            step.consumed_partition,
            step.consumed_offset,
            targets[0] if targets else None,
            content(step),
            ms,
            None if step.produced_us is None else step.produced_us // 1000,
            step.parent,
            int(late),
            0,
        )
        _add(rows, "state", row)


def _add(rows: Rows, table: str, row: Sequence[Any]) -> None:
    rows.setdefault(table, []).append(tuple(row))


def _letter(source: Source, record: Record, names: Names) -> tuple[Any, ...]:
    letter = read_letter(record, source.facts.topic_id, names)
    # Of another system, or of no step: it is counted and no more.
    job = pack(letter.job) if letter.job and letter.seq else None
    return source.n, record.partition(), record.offset(), job, letter.seq, letter.at_ms


def _unreadable(source: Source, record: Record, rejected: Rejected) -> tuple[Any, ...]:
    key = (record.key() or b"").decode(errors="replace")
    return (
        "unreadable_state",
        pack(key) if is_job_id(key) else None,
        None,
        source.n,
        record.partition(),
        record.offset(),
        rejected.reason[:_REASON_CHARS],
    )
