"""The joins of a flow in Postgres: a batch of records is applied in one transaction (decision 15).

Whatever the order of a batch, however often it is applied, by whatever number of agents, the sets
are the same (`streams.joins.book` has the rules), and so is the record that a join was closed by.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from schemas.state import Status
from streams.config import Settings
from streams.joins.book import Book, Incoming, Join, Late, Place, Turn
from streams.joins.joined import BranchRow, JoinRef
from streams.joins.wire import Expected
from streams.postgres import Conn, Pool, load_queries, plain_array, pooled

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.joins").items()}
_ARRIVAL_TYPES: Final = ("text", "int4", "text", "int4", "bytea", "bool")
_PAGE_ROWS: Final = 2_000
_PAGE_BYTES: Final = 4 * 2**20


class JoinRows:
    """The joins of one flow, for its agent. `topic_id` is the UUID of its join topic."""

    def __init__(self, flow: str, topic_id: UUID) -> None:
        self._flow, self._topic_id = flow, topic_id

    async def apply(self, conn: Conn, batch: Sequence[Incoming]) -> list[Turn]:
        """Take `batch`, in the order of its offsets, into the sets, in the caller's transaction;
        whose turn it is. Applied again, it gives the same turns."""
        if not batch:
            return []
        new = await self._expect(conn, [x for x in batch if isinstance(x.record, Expected)])
        book = Book(await self._lock(conn, batch), new)
        for row in await _early(conn, {parent for parent, _ in new}):
            book.early(row["parent"], row["branch"], Status(row["status"]))
        for each in batch:
            book.write(each)
        await _keep(conn, book.arrivals)
        await self._update(conn, book.changed)
        return book.turns({each.place for each in batch})

    async def _expect(self, conn: Conn, expected: Sequence[Incoming]) -> set[tuple[str, int]]:
        """Parent and step of those that are new."""
        if not expected:
            return set()
        values = {"flow": self._flow, **_columns(expected)}
        cursor = await conn.execute(_SQL["expect"], values)
        return {(row["parent"], row["seq"]) for row in await cursor.fetchall()}

    async def _lock(self, conn: Conn, batch: Sequence[Incoming]) -> list[Join]:
        """The joins of all jobs that the batch is about; nobody else changes them meanwhile."""
        values = {"parents": plain_array(sorted({x.parent for x in batch}))}
        cursor = await conn.execute(_SQL["lock"], values, prepare=True)
        return [self._join(row) for row in await cursor.fetchall()]

    def _join(self, row: Mapping[str, Any]) -> Join:
        return Join(
            parent=row["parent"],
            seq=row["seq"],
            stage=row["stage"],
            first=row["first_branch"],
            expected=row["expected"],
            rule=row["rule"],
            has_deadline=row["has_deadline"],
            born_us=row["born_us"],
            keys_of=row["keys_of"],
            step=row["step"],
            status=row["status"],
            done=int.from_bytes(row["done_set"]),
            failed=int.from_bytes(row["failed_set"]),
            reason=row["reason"] or "",
            closed=self._place(row, "closed"),
            reopened=self._place(row, "reopened"),
        )

    def _place(self, row: Mapping[str, Any], what: str) -> Place | None:
        if row[f"{what}_topic_id"] != self._topic_id:
            return None
        return row[f"{what}_partition"], row[f"{what}_offset"]

    async def _update(self, conn: Conn, joins: Sequence[Join]) -> None:
        if not joins:
            return
        values = {
            "topic_id": self._topic_id,
            "parents": plain_array(j.parent for j in joins),
            "seqs": plain_array(str(j.seq) for j in joins),
            "rules": plain_array(j.rule for j in joins),
            "has_deadline": plain_array("t" if j.has_deadline else "f" for j in joins),
            "steps": plain_array(str(j.step) for j in joins),
            "statuses": plain_array(j.status for j in joins),
            "done_sets": plain_array(_hex(j.done) for j in joins),
            "failed_sets": plain_array(_hex(j.failed) for j in joins),
            "reasons": [j.reason for j in joins],
            **_places("closed", (j.closed for j in joins)),
            **_places("reopened", (j.reopened for j in joins)),
        }
        await conn.execute(_SQL["update"], values, prepare=True)


async def _early(conn: Conn, parents: Collection[str]) -> Sequence[Mapping[str, Any]]:
    if not parents:
        return ()
    values = {"parents": plain_array(sorted(parents))}
    return await (await conn.execute(_SQL["early"], values, prepare=True)).fetchall()


async def _keep(conn: Conn, arrivals: Sequence[Late]) -> None:
    if not arrivals:
        return
    await conn.execute(_SQL["create_staging"])
    async with conn.cursor() as cursor, cursor.copy(_SQL["copy_arrivals"]) as copy:
        copy.set_types(_ARRIVAL_TYPES)
        for parent, a, late in arrivals:
            await copy.write_row((parent, a.number, a.status.value, a.seq, a.value, late))
    await conn.execute(_SQL["arrive"], prepare=True)


class Results:
    """Where the handlers of joins read their branches (`streams.joins.BranchSource`)."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings

    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        """Pages of branches, in order, some MiB each. Raises `BadWorld`."""
        start, end = ref.first, ref.first + ref.expected
        deadline_s = 2 * self._settings.database_timeout_s
        while start < end:
            values = {
                "parent": ref.parent,
                "from": start,
                "end": end,
                "limit": _PAGE_ROWS,
                "bytes": _PAGE_BYTES,
            }
            async with pooled(self._pool, self._settings, deadline_s=deadline_s) as conn:
                cursor = await conn.execute(_SQL["results"], values, prepare=True, binary=True)
                rows = await cursor.fetchall()
            if not rows:
                return
            for row in rows:
                yield BranchRow(row["branch"], Status(row["status"]), row["value"])
            start = rows[-1]["branch"] + 1


def _columns(expected: Sequence[Incoming]) -> dict[str, Any]:
    found = [(x.parent, x.record) for x in expected if isinstance(x.record, Expected)]
    return {
        "parents": [parent for parent, _ in found],
        "seqs": [e.seq for _, e in found],
        "forked_by": [e.what.forked_by for _, e in found],
        "stages": [e.what.stage for _, e in found],
        "firsts": [e.what.first for _, e in found],
        "expected": [e.what.expected for _, e in found],
        "rules": [e.what.rule for _, e in found],
        "deadlines_ms": [e.what.deadline_ms for _, e in found],
        "born_us": [e.born_us for _, e in found],
        "keys_of": [e.what.keys_of for _, e in found],
    }


def _places(what: str, places: Iterable[Place | None]) -> dict[str, str]:
    pairs = [("NULL", "NULL") if p is None else (str(p[0]), str(p[1])) for p in places]
    return {
        f"{what}_partitions": plain_array(partition for partition, _ in pairs),
        f"{what}_offsets": plain_array(offset for _, offset in pairs),
    }


def _hex(bits: int) -> str:
    # An empty text would have to be quoted.
    return bits.to_bytes(bits.bit_length() // 8 + 1).hex()
