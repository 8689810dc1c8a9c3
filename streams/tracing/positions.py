"""How far the tracer has exported: kept in Postgres, moved after the collector has the spans."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from streams.config import Settings
from streams.postgres import Pool, load_queries, pooled

_SQL = load_queries("streams.tracing")


class TracerPositions:
    """Positions of one `job-state` topic. After a crash some spans are exported again, with the
    same ids."""

    def __init__(self, pool: Pool, settings: Settings, topic_id: UUID) -> None:
        self._pool, self._settings, self._topic_id = pool, settings, topic_id

    async def load(self) -> dict[int, int]:
        """Next offset of each partition. Raises `BadWorld`."""
        async with pooled(self._pool, self._settings) as conn:
            rows = await conn.execute(_SQL["tracer_positions"], {"topic_id": self._topic_id})
            return {r["partition"]: r["next_offset"] for r in await rows.fetchall()}

    async def advance(self, ends: Mapping[int, int]) -> None:
        """Forward only. Raises `BadWorld`."""
        async with pooled(self._pool, self._settings) as conn:
            await conn.execute(
                _SQL["tracer_advance"],
                {
                    "topic_id": self._topic_id,
                    "partitions": list(ends),
                    "to_offsets": list(ends.values()),
                },
            )
