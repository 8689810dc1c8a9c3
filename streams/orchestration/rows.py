"""The runs of a flow in Postgres: a batch of records is applied in the caller's transaction.

Whatever the order of a batch, however often it is applied, by whatever number of agents, each event
is in the journal once, in the order of the topic, and leads to the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from schemas.state import Status
from streams.crashpoints import reach
from streams.joins.book import Cancelled, Incoming
from streams.joins.wire import Arrival, Cancel, Reopen
from streams.orchestration.execution import WITH_ITS_RUN, Event
from streams.orchestration.journal import (
    Asked,
    Ended,
    Happened,
    Journal,
    Player,
    RunTurn,
    turns,
)
from streams.orchestration.wire import Began, Fired, Sent
from streams.postgres import Conn, array_literal, load_queries, plain_array

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.orchestration").items()}
#: Journals that are in memory at once.
_AT_ONCE: Final = 500
#: Of events that came before their run.
_NO_RUN: Final = 0

_Key = tuple[str, int]


class RunRows:
    """The rows of one flow. `topic_id` is its join topic's."""

    def __init__(self, flow: str, topic_id: UUID, player: Player) -> None:
        self._flow, self._topic_id, self._player = flow, topic_id, player

    async def apply(
        self, conn: Conn, batch: Sequence[Incoming]
    ) -> tuple[list[Incoming], list[RunTurn]]:
        """Records that are none of a run's, and the turns of those that are. After a failure of the
        transaction, or a crash, apply it again."""
        await self._begin(conn, batch)
        journals = await self._lock(conn, batch)
        rest, events = self._sort(batch, journals)
        if not events:
            return rest, []
        await _many(conn, "happen", events, topic_id=self._topic_id)
        await self._adopt(conn, batch)
        reach("runs.happened")
        told = {each["parent"] for each in events}
        touched = [j for j in journals.values() if j.parent in told]
        places = {x.place for x in batch}
        found: list[RunTurn] = []
        for some in _chunks(touched):
            await self._load(conn, some)
            moved = []
            for each in some:
                each.kept, seen = len(each.asked), each.seen
                self._player.play(each)
                if each.seen != seen:
                    moved.append(each)
            await self._keep(conn, moved)
            for each in some:
                found += turns(each, places)
        return rest, found

    async def _begin(self, conn: Conn, batch: Sequence[Incoming]) -> None:
        values = [
            {
                "parent": x.parent,
                "seq": x.record.seq,
                "input": x.record.input,
                "born_us": x.record.born_us,
                **x.record.what.model_dump(),
            }
            for x in batch
            if isinstance(x.record, Began)
        ]
        await _many(conn, "begin", values, flow=self._flow)

    async def _lock(self, conn: Conn, batch: Sequence[Incoming]) -> dict[_Key, Journal]:
        values = {"parents": plain_array(sorted({x.parent for x in batch}))}
        cursor = await conn.execute(_SQL["lock"], values, prepare=True)
        return {(row["parent"], row["seq"]): _journal(row) for row in await cursor.fetchall()}

    def _sort(
        self, batch: Sequence[Incoming], journals: Mapping[_Key, Journal]
    ) -> tuple[list[Incoming], list[dict[str, Any]]]:
        of: defaultdict[str, list[Journal]] = defaultdict(list)
        for each in journals.values():
            of[each.parent].append(each)
        rest: list[Incoming] = []
        events: list[dict[str, Any]] = []
        for x in batch:
            found = event_of(x, of[x.parent])
            if found is None or isinstance(x.record, Cancel):
                rest.append(x)
            if found is not None:
                run, event = found
                events.append(self._row(x, run, event))
        return rest, events

    @staticmethod
    def _row(x: Incoming, run: int, event: Event) -> dict[str, Any]:
        partition, offset = x.place
        return {
            "parent": x.parent,
            "run": run,
            "partition": partition,
            "offset": offset,
            **event._asdict(),
        }

    async def _adopt(self, conn: Conn, batch: Sequence[Incoming]) -> None:
        keys = [(x.parent, x.record.seq) for x in batch if isinstance(x.record, Began)]
        if keys:
            await conn.execute(_SQL["adopt"], _keys(keys), prepare=True)

    async def _load(self, conn: Conn, some: Sequence[Journal]) -> None:
        by_key = {(j.parent, j.seq): j for j in some}
        cursor = await conn.execute(_SQL["events"], _keys(by_key), prepare=True)
        for row in await cursor.fetchall():
            by_key[row["parent"], row["run"]].events.append(self._happened(row))
        cursor = await conn.execute(_SQL["commands"], _keys(by_key), prepare=True)
        for row in await cursor.fetchall():
            key = row.pop("parent"), row.pop("run")
            by_key[key].asked.append(Asked(**row))

    def _happened(self, row: Mapping[str, Any]) -> Happened:
        place = None
        if row["topic_id"] == self._topic_id:
            place = row["partition"], row["offset"]
        end = None
        if row["end_status"] is not None:
            status = Status(row["end_status"])
            end = Ended(status, row["end_to"], row["end_type"], row["end_value"])
        event = Event(row["kind"], row["ref"], row["detail"], row["value"], row["at_us"])
        return Happened(row["position"], event, place, row["step"], end)

    async def _keep(self, conn: Conn, some: Sequence[Journal]) -> None:
        await _many(conn, "ask", [_asked(j, a) for j in some for a in j.asked[j.kept :]])
        changed = [(j, x) for j in some for x in j.events if x.changed]
        reach("runs.asked")
        await _many(conn, "follow", [_followed(j, x) for j, x in changed])
        await _many(conn, "release", [_key(j, x) for j in some for x in j.left])
        await _many(conn, "move", [_moved(j) for j in some])


def event_of(x: Incoming, journals: Sequence[Journal]) -> tuple[int, Event] | None:
    """Which run of its job the record is about, and what it tells of it."""
    record, at_us = x.record, x.at_us
    live = next((j.seq for j in journals if j.status != "ended"), _NO_RUN)
    found: tuple[int, Event] | None = None
    match record:
        case Began():
            found = record.seq, Event("start", "", "", b"", at_us)
        case Fired(seq=seq, n=n):
            found = seq, Event("timer", str(n), "", b"", at_us)
        case Sent():
            found = live, Event("signal", record.id, record.name, record.value, at_us)
        case Cancel() if x.cancelled is not None and _reaches(x.cancelled, journals):
            found = live, Event("cancel", "", "", record.order, at_us)
        case Arrival(number=n):
            its = next((j for j in journals if j.holds(n)), None)
            if its is not None:
                # A child that was cancelled with this job, or one above, tells of that, too.
                with_it = x.cancelled is not None and _reaches(x.cancelled, [its])
                status = WITH_ITS_RUN if with_it else record.status.value
                found = its.seq, Event("call", str(n), status, record.value, at_us)
        case Reopen(seq=seq):
            its = next((j for j in journals if j.seq < seq <= j.step), None)
            if its is not None:
                found = its.seq, Event("redrive", str(seq), "", b"", at_us)
    return found


def _reaches(cancelled: Cancelled, journals: Sequence[Journal]) -> bool:
    """Whether no run of the job is shielded from a cancel of that ancestor, or of the job."""
    return all(j.shielded is None or len(cancelled.job) >= len(j.shielded) for j in journals)


async def _many(conn: Conn, query: str, rows: Sequence[Mapping[str, Any]], **more: object) -> None:
    """One statement for all `rows`, whose values are columns of it."""
    if rows:
        columns = {name: _array(row[name] for row in rows) for name in rows[0]}
        await conn.execute(_SQL[query], {**columns, **more}, prepare=True)


def _array(values: Iterable[str | int | bool | bytes | None]) -> str:
    """An array literal, made by joining: a psycopg list costs ten times as much in Python."""
    return plain_array(map(_element, values))


def _element(value: str | int | bool | bytes | None) -> str:
    match value:
        case str():
            text = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{text}"'
        case bytes():
            return f'"\\\\x{value.hex()}"'
        case None:
            return "NULL"
        case _:
            return str(value)


def _chunks(journals: Sequence[Journal]) -> Iterator[Sequence[Journal]]:
    for start in range(0, len(journals), _AT_ONCE):
        yield journals[start : start + _AT_ONCE]


def _keys(keys: Iterable[_Key]) -> dict[str, str]:
    found = list(keys)
    return {
        "parents": plain_array(parent for parent, _ in found),
        "seqs": plain_array(str(seq) for _, seq in found),
    }


def _journal(row: Mapping[str, Any]) -> Journal:
    return Journal(**{name: value for name, value in row.items() if name != "commands"})


def _asked(journal: Journal, asked: Asked) -> dict[str, Any]:
    kept = {name: getattr(asked, name) for name in Asked.__slots__}
    return {"parent": journal.parent, "run": journal.seq, **kept}


def _key(journal: Journal, happened: Happened) -> dict[str, Any]:
    event = happened.event
    return {
        "parent": journal.parent,
        "run": journal.seq,
        "kind": event.kind,
        "ref": event.ref,
    }


def _followed(journal: Journal, happened: Happened) -> dict[str, Any]:
    end = happened.end
    return {
        **_key(journal, happened),
        "step": happened.step,
        "end_status": None if end is None else end.status.value,
        "end_to": None if end is None else end.to,
        "end_type": None if end is None else end.ce_type,
        "end_value": None if end is None else end.value,
    }


def _moved(journal: Journal) -> dict[str, Any]:
    return {
        "parent": journal.parent,
        "seq": journal.seq,
        "step": journal.step,
        "commands": len(journal.asked),
        "calls": journal.calls,
        "seen": journal.seen,
        "status": journal.status,
        "waits": array_literal(journal.waits),
    }
