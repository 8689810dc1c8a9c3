"""The set of branches in Postgres, by which a join is decided (decision 15).

A batch of records is applied in one transaction: whatever its order, however often it is applied,
by whatever number of agents, the sets are the same. Which record a join was closed by is written
down with it, and that record alone hands the results on, again if it comes again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import UUID

from schemas.state import Status
from streams.config import Settings
from streams.crashpoints import reach
from streams.joins.joined import BranchRow, JoinRef
from streams.joins.wire import Arrival, Deadline, Expected, JoinRecord, Reopen
from streams.postgres import Conn, Pool, load_queries, pooled

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.joins").items()}
_ARRIVAL_TYPES: Final = ("text", "int4", "text", "int4", "bytea")
#: Branches that a message names; results of one page.
_NAMED: Final = 5
_PAGE_ROWS: Final = 200

#: Partition and offset of a record of the join topic.
Place = tuple[int, int]


class Incoming(NamedTuple):
    """One record of the join topic; `parent` is its key."""

    parent: str
    place: Place
    record: JoinRecord


class Turn(NamedTuple):
    """The record at `place` writes its parent's step `seq`: `outcome` joined, failed, or open when
    it reopened a join that is still not complete."""

    place: Place
    seq: int
    outcome: str
    stage: str
    reason: str
    ref: JoinRef
    born_us: int
    keys_of: str | None

    @property
    def parent(self) -> str:
        return self.ref.parent


class JoinRows:
    """The joins of one flow, for its agent. `topic_id` is the UUID of its join topic."""

    def __init__(self, pool: Pool, settings: Settings, flow: str, topic_id: UUID) -> None:
        self._pool, self._settings = pool, settings
        self._flow, self._topic_id = flow, topic_id

    async def apply(self, batch: Sequence[Incoming]) -> list[Turn]:
        """Take `batch`, in the order of its offsets, into the sets; whose turn it is.

        After a crash at any instruction it has been applied whole or not at all, and applying it
        again gives the same turns. Raises `BadWorld` when Postgres fails: apply it again.
        """
        if not batch:
            return []
        # Each statement has its own time-out; this bound is for a server that stands still.
        deadline_s = 4 * self._settings.database_timeout_s
        async with (
            pooled(self._pool, self._settings, deadline_s=deadline_s) as conn,
            conn.transaction(),
        ):
            for part in _parts(batch):
                await self._apply(conn, part)
            parents = _array(sorted({each.parent for each in batch}))
            await self._explain(conn, parents)
            values = {"parents": parents, "topic_id": self._topic_id}
            cursor = await conn.execute(_SQL["turns"], values, prepare=True)
            rows = await cursor.fetchall()
            reach("join.applied")
        here = {each.place for each in batch}
        return [turn for row in rows for turn in _turns(row) if turn.place in here]

    async def _apply(self, conn: Conn, part: Sequence[Incoming]) -> None:
        match part[0].record:
            case Deadline(seq=seq):
                await conn.execute(_SQL["time_is_up"], self._of(part[0], seq))
            case Reopen(seq=seq):
                values = self._of(part[0], seq)
                await conn.execute(_SQL["reopen"], values)
                await self._close(conn, part)
                await conn.execute(_SQL["wait_on"], values)
            case _:
                await self._collect(conn, part)

    async def _collect(self, conn: Conn, part: Sequence[Incoming]) -> None:
        """Expectations and arrivals, whatever joins they belong to: a few statements for all."""
        expected = [x for x in part if isinstance(x.record, Expected)]
        if expected:
            await conn.execute(_SQL["expect"], {"flow": self._flow, **_columns(expected)})
        parents = _array(sorted({x.parent for x in part}))
        await conn.execute(_SQL["lock"], {"parents": parents}, prepare=True)
        # Of a branch that comes twice in a batch its later step counts.
        latest: dict[tuple[str, int], Arrival] = {}
        for parent, _, record in part:
            if isinstance(record, Arrival):
                known = latest.get((parent, record.number))
                if known is None or record.seq > known.seq:
                    latest[parent, record.number] = record
        if latest:
            await conn.execute(_SQL["create_staging"])
            async with conn.cursor() as cursor, cursor.copy(_SQL["copy_arrivals"]) as copy:
                copy.set_types(_ARRIVAL_TYPES)
                for (parent, n), a in latest.items():
                    await copy.write_row((parent, n, a.status.value, a.seq, a.value))
            await conn.execute(_SQL["arrive"], prepare=True)
            await conn.execute(_SQL["clear_staging"])
        await self._close(conn, part)

    async def _close(self, conn: Conn, part: Sequence[Incoming]) -> None:
        """Close what is complete, each by its last record here."""
        last = {each.parent: each.place for each in part}
        values = {
            "topic_id": self._topic_id,
            "parents": _array(last),
            "partitions": _array(str(p) for p, _ in last.values()),
            "offsets": _array(str(offset) for _, offset in last.values()),
        }
        await conn.execute(_SQL["close"], values, prepare=True)

    async def _explain(self, conn: Conn, parents: str) -> None:
        """Say in a sentence why joins have failed just now."""
        cursor = await conn.execute(_SQL["unexplained"], {"parents": parents}, prepare=True)
        for row in await cursor.fetchall():
            values = {
                "parent": row["parent"],
                "first": row["first_branch"],
                "expected": row["expected"],
                "limit": _NAMED,
            }
            named = await (await conn.execute(_SQL["not_done"], values)).fetchall()
            reason = _reason(row, named)
            await conn.execute(
                _SQL["explain"], {"parent": row["parent"], "seq": row["seq"], "reason": reason}
            )

    def _of(self, each: Incoming, seq: int) -> dict[str, Any]:
        partition, offset = each.place
        return {
            "parent": each.parent,
            "seq": seq,
            "topic_id": self._topic_id,
            "partition": partition,
            "offset": offset,
        }


class Results:
    """Where the handlers of joins read their branches (`streams.joins.BranchSource`)."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings

    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        """Pages of branches, in order. Raises `BadWorld`."""
        end = ref.first + ref.expected
        start = ref.first
        while start < end:
            values = {"parent": ref.parent, "from": start, "end": end, "limit": _PAGE_ROWS}
            async with pooled(
                self._pool, self._settings, deadline_s=2 * self._settings.database_timeout_s
            ) as conn:
                cursor = await conn.execute(_SQL["results"], values, prepare=True)
                rows = await cursor.fetchall()
            for row in rows:
                yield BranchRow(row["branch"], Status(row["status"]), bytes(row["value"]))
            if len(rows) < _PAGE_ROWS:
                return
            start = rows[-1]["branch"] + 1


def _parts(batch: Sequence[Incoming]) -> Iterator[list[Incoming]]:
    """Runs of what can be taken together; a deadline or a redrive stands for itself, between what
    came before it and what came after."""
    for alone, run in groupby(batch, lambda x: isinstance(x.record, Deadline | Reopen)):
        if alone:
            yield from ([each] for each in run)
        else:
            yield list(run)


def _columns(expected: Sequence[Incoming]) -> dict[str, Any]:
    found: list[tuple[str, Expected]] = [
        (x.parent, x.record) for x in expected if isinstance(x.record, Expected)
    ]
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


def _turns(row: dict[str, Any]) -> Iterator[Turn]:
    """Up to two: of the record that closed a join, and of another that had reopened it."""
    ref = JoinRef(
        parent=row["parent"],
        seq=row["seq"],
        first=row["first_branch"],
        expected=row["expected"],
        done=row["done"] or 0,
        failed=row["failed"] or 0,
    )
    more = row["stage"], row["reason"] or "", ref, row["born_us"], row["keys_of"]
    closed = (row["closed_partition"], row["closed_offset"]) if row["closed_here"] else None
    reopened = (row["reopened_partition"], row["reopened_offset"]) if row["reopened_here"] else None
    if closed is not None:
        yield Turn(closed, row["step"] + 1, row["status"], *more)
    if reopened is not None and reopened != closed:
        yield Turn(reopened, row["step"], "open", *more)


def _reason(row: dict[str, Any], named: Sequence[dict[str, Any]]) -> str:
    open_ = row["expected"] - row["done"] - row["failed"]
    told = ", ".join(f"/{x['branch']} {x['status'] or 'has not come'}" for x in named)
    more = row["expected"] - row["done"] - len(named)
    rest = f" and {more:,} more" if more > 0 else ""
    when = "when the time was up" if row["too_late"] else "when one failed"
    return (
        f"Of {row['expected']:,} branches {row['done']:,} were done, {row['failed']:,} failed and "
        f"{open_:,} had not come {when}: {told}{rest}. Redrive the branches' dead letters, then "
        "this one: the join then waits for all."
    )


def _array(items: Any) -> str:
    # Job ids and numbers: nothing that an array literal would have to quote.
    return "{" + ",".join(items) + "}"
