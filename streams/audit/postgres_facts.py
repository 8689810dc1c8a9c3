"""Postgres as of one instant: projection, history, ledger. One read-only snapshot, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from schemas.ids import is_job_id
from streams.audit.facts import SQL, Facts
from streams.audit.sources import SINCE_MARGIN_MS, Catalogue, Role
from streams.audit.wire import pack
from streams.postgres import SyncConn

_PAGE_ROWS: Final = 20_000
_NIL: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Filter:
    """What is asked for: one flow, and what is younger than a time; both may be missing."""

    flow: str | None = None
    since_ms: int | None = None

    def values(self) -> dict[str, Any]:
        if self.since_ms is None:
            return {"flow": self.flow, "since": None, "since_us": None}
        ms = max(0, self.since_ms - SINCE_MARGIN_MS)
        return {
            "flow": self.flow,
            "since": datetime.fromtimestamp(ms / 1000, UTC),
            "since_us": ms * 1000,
        }


class Snapshot:
    """Reads one snapshot into `facts`. Raises `BadWorld`, or `BadSetup` for a schema too old."""

    def __init__(self, conn: SyncConn, facts: Facts, catalogue: Catalogue, wanted: Filter) -> None:
        self._conn, self._facts, self._catalogue, self._wanted = conn, facts, catalogue, wanted
        #: job-state topics that are not there any more get negative numbers.
        self._old: dict[str, int] = {}

    def read(self, progress: Callable[[int, int], None]) -> None:
        """All of it, within one transaction."""
        self._conn.execute(SQL["begin_snapshot"])
        try:
            size = next(self._ask("pg_sizes", {}))[0]
            here = {"topic_id": self._catalogue.state.facts.topic_id}
            self._facts.add("projected", self._ask("pg_projected", here))
            self._facts.add("reject", self._ask("pg_rejects", here))
            done = 0
            for table, pages in (
                ("history", self._history()),
                ("row", self._jobs()),
                ("effect", self._effects()),
                *self._sets(),
            ):
                for rows in pages:
                    self._facts.add(table, rows)
                    done += len(rows)
                    progress(done, max(done, size))
        finally:
            self._conn.execute(SQL["end_snapshot"])

    def _ask(self, name: str, values: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        # Tuples in the driver's binary format: a dictionary a row would cost as much as all else.
        cursor = self._conn.cursor(row_factory=lambda _: tuple, binary=True)
        return iter(cursor.execute(SQL[name].encode(), values))

    def _pages(
        self, name: str, after: dict[str, Any], key: Callable[[tuple[Any, ...]], dict[str, Any]]
    ) -> Iterator[list[tuple[Any, ...]]]:
        while True:
            values = {**self._wanted.values(), **after, "limit": _PAGE_ROWS}
            page = list(self._ask(name, values))
            if page:
                yield page
            if len(page) < _PAGE_ROWS:
                return
            after = key(page[-1])

    def _history(self) -> Iterator[list[tuple[Any, ...]]]:
        first = {"after_topic": _NIL, "after_part": -1, "after_at": -1}
        keyed = _keys("after_topic", "after_part", "after_at")
        for page in self._pages("pg_history", first, keyed):
            yield [self._step(row) for row in page]

    def _step(self, row: Sequence[Any]) -> tuple[Any, ...]:
        topic_id, part, at, trace_id, seq, flow, stage, status = row[:8]
        consumed_id, consumed_part, consumed_at, handed_to, content, ms, produced_ms = row[8:]
        catalogue = self._catalogue
        topic = catalogue.by_id(topic_id) or self._old.setdefault(topic_id, -1 - len(self._old))
        job = pack(trace_id)
        if len(handed_to) > 1:
            self._facts.add("also", [(job, seq, catalogue.stage(flow, to)) for to in handed_to[1:]])
        return (
            topic,
            part,
            at,
            job,
            seq,
            catalogue.stage(flow, stage),
            status,
            catalogue.by_id(consumed_id),
            consumed_part,
            consumed_at,
            catalogue.stage(flow, handed_to[0]) if handed_to else None,
            content,
            ms,
            produced_ms,
        )

    def _jobs(self) -> Iterator[list[tuple[Any, ...]]]:
        stage = self._catalogue.stage
        for page in self._pages("pg_jobs", {"after": ""}, _keys("after")):
            yield [
                # A row that no projector wrote may bear any id: it is kept as it is.
                (_job(trace_id), seq, stage(flow, its_stage), status, content, parent)
                for trace_id, seq, flow, its_stage, status, content, parent in page
            ]

    def _effects(self) -> Iterator[list[tuple[Any, ...]]]:
        stage = self._catalogue.stage
        for page in self._pages("pg_effects", {"after": ""}, _keys("after")):
            yield [
                (key, _job(trace_id), stage(flow, its_stage), f"{its_stage}/{name}", *rest)
                for key, trace_id, flow, its_stage, name, *rest in page
            ]

    def _sets(self) -> Iterator[tuple[str, Iterator[list[tuple[Any, ...]]]]]:
        """The sets that joins are decided by, where anything forks."""
        if self._catalogue.of(Role.JOIN):
            yield "kept_join", self._joins()
            yield "kept_arrival", self._arrivals()
            yield "kept_run", self._runs()
            yield "kept_event", self._events()

    def _joins(self) -> Iterator[list[tuple[Any, ...]]]:
        stage = self._catalogue.stage
        first = {"after": "", "after_seq": -1}
        for page in self._pages("pg_joins", first, _keys("after", "after_seq")):
            yield [
                (_job(parent), seq, stage(flow, into), *rest)
                for parent, seq, flow, into, *rest in page
            ]

    def _arrivals(self) -> Iterator[list[tuple[Any, ...]]]:
        first = {"after": "", "after_branch": -1}
        for page in self._pages("pg_join_arrivals", first, _keys("after", "after_branch")):
            yield [(_job(parent), *rest) for parent, *rest in page]

    def _runs(self) -> Iterator[list[tuple[Any, ...]]]:
        first = {"after": "", "after_seq": -1}
        for page in self._pages("pg_runs", first, _keys("after", "after_seq")):
            yield [(_job(parent), *rest) for parent, *rest in page]

    def _events(self) -> Iterator[list[tuple[Any, ...]]]:
        first = {"after": "", "after_run": -1, "after_kind": "", "after_ref": ""}
        keyed = _keys("after", "after_run", "after_kind", "after_ref")
        for page in self._pages("pg_run_events", first, keyed):
            yield [
                (_job(parent), *event, self._catalogue.by_id(topic_id), *rest)
                for parent, *event, topic_id, part, at, step, ms in page
                for rest in [(part, at, step, ms)]
            ]


def _job(trace_id: str) -> bytes:
    return pack(trace_id) if is_job_id(trace_id) else trace_id.encode()


def _keys(*names: str) -> Callable[[tuple[Any, ...]], dict[str, Any]]:
    return lambda row: dict(zip(names, row, strict=False))
