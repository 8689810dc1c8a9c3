"""What a flow's join agent keeps in Postgres: a batch of its records in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from streams.config import Settings
from streams.crashpoints import reach
from streams.joins.book import Incoming, Turn
from streams.joins.rows import JoinRows
from streams.orchestration.journal import Player, RunTurn
from streams.orchestration.rows import RunRows
from streams.postgres import Pool, pooled


class AgentRows:
    """Joins, and with a `player` runs, of one flow; `topic_id` is the UUID of its join topic."""

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        flow: str,
        topic_id: UUID,
        player: Player | None = None,
    ) -> None:
        self._pool, self._settings = pool, settings
        self._joins = JoinRows(flow, topic_id)
        self._runs = None if player is None else RunRows(flow, topic_id, player)

    async def apply(self, batch: Sequence[Incoming]) -> list[Turn | RunTurn]:
        """Take `batch`, in the order of its offsets; whose turn it is.

        After a crash at any instruction it has been applied whole or not at all, and applying it
        again gives the same turns. Raises `BadWorld` when Postgres fails: apply it again.
        """
        if not batch:
            return []
        # Each statement has its own time-out; this bound is for a server that stands still.
        deadline_s = 4 * self._settings.database_timeout_s
        turns: list[Turn | RunTurn] = []
        async with (
            pooled(self._pool, self._settings, deadline_s=deadline_s) as conn,
            conn.transaction(),
        ):
            if self._runs is not None:
                batch, runs = await self._runs.apply(conn, batch)
                turns += runs
            turns += await self._joins.apply(conn, batch)
            reach("join.applied")
        return turns
