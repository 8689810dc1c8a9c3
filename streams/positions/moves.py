"""Positions in Postgres: the next offset of each partition, moved in the transaction that applies.

Compare and set, so that a zombie, a repeated batch or a commit of unknown outcome changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from streams.config import Settings
from streams.errors import HandoffError
from streams.postgres import Conn, Pool, SyncConn, for_table, load_queries, pooled

_SQL: Final = load_queries("streams.positions")


@dataclass(frozen=True, slots=True)
class Move:
    """What a batch does to one partition: read from `from_offset` on, done before `to_offset`.

    `from_offset` is the position that the reader believes in, not the first record's offset: topics
    have gaps. A partition that was never applied stands at 0.
    """

    partition: int
    from_offset: int
    to_offset: int


class Moved(HandoffError):
    """Somebody else has moved the positions; the batch changed nothing.

    `positions` says where the partitions stand now: seek there and go on. It is the end of a
    zombie, the answer to a commit of unknown outcome, and what a projector sees after a rebuild.

    Operator action: none; two agents that keep moving each other share a slot (`--slot`).
    """

    def __init__(self, message: str, *, positions: dict[int, int], **fields: object) -> None:
        super().__init__(message, positions=positions, **fields)
        self.positions = positions


def positions_of(conn: SyncConn, table: str, topic_id: UUID) -> dict[int, int]:
    """Next offset of each partition in `table`, which has the columns of `projection_offsets`."""
    rows = conn.execute(for_table(_SQL, table)["positions"], {"topic_id": topic_id}).fetchall()
    return {row["partition"]: row["next_offset"] for row in rows}


class Positions:
    """The positions of one topic in `table`, which has the columns of `projection_offsets`.

    `what` names the table's owner, `who` an agent that moves it, both for messages.
    """

    def __init__(self, table: str, *, topic: str, topic_id: UUID, what: str, who: str) -> None:
        self._sql = for_table(_SQL, table)
        self._topic, self._topic_id = topic, topic_id
        self._what, self._who = what, who

    async def load(self, pool: Pool, settings: Settings) -> dict[int, int]:
        """Next offset to read of each partition; one that is missing starts at 0.

        Raises `BadWorld`.
        """
        async with pooled(pool, settings, deadline_s=settings.database_timeout_s) as conn:
            return await self.read(conn)

    async def read(self, conn: Conn) -> dict[int, int]:
        """The same, as the open transaction of `conn` sees it."""
        cursor = await conn.execute(self._sql["positions"], {"topic_id": self._topic_id})
        return {row["partition"]: row["next_offset"] for row in await cursor.fetchall()}

    async def advance(self, conn: Conn, moves: Sequence[Move]) -> None:
        """Compare and set all of `moves` within the open transaction of `conn`, whose row locks are
        held until its end. Raises `Moved`: then leave the transaction by that exception."""
        held = await self._lock(conn, moves)
        if len(held) < len(moves):
            await conn.execute(self._sql["seed_positions"], self._of(moves))
            held = await self._lock(conn, moves)
        moved = [m for m in moves if held[m.partition] != m.from_offset]
        if moved:
            first = moved[0]
            raise Moved(
                f"{self._topic}[{first.partition}] of {self._what} stands at "
                f"{held[first.partition]}, not at {first.from_offset}: another {self._who} applied "
                f"records, or {self._what} is being rebuilt. This batch changed nothing.",
                positions=held,
                topic=self._topic,
            )
        await conn.execute(self._sql["advance_positions"], self._of(moves))

    async def _lock(self, conn: Conn, moves: Sequence[Move]) -> dict[int, int]:
        cursor = await conn.execute(self._sql["lock_positions"], self._of(moves))
        return {row["partition"]: row["next_offset"] for row in await cursor.fetchall()}

    def _of(self, moves: Sequence[Move]) -> dict[str, object]:
        return {
            "topic": self._topic,
            "topic_id": self._topic_id,
            "partitions": [m.partition for m in moves],
            "to_offsets": [m.to_offset for m in moves],
        }
