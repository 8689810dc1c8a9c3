"""Results of branches in a replay: read as a handler asks for them, from Postgres or a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from streams.config import Settings
from streams.errors import BadWorld
from streams.joins import BranchRow, BranchSource, JoinRef
from streams.joins.rows import Results
from streams.postgres import Pool, open_pool
from streams.replay.effects import RunEnded


class PooledBranches:
    """Postgres, in sessions that may only read. Connects when a result is first asked for; belongs
    to one event loop, in which `close` ends it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        """Raises `BadWorld`."""
        async with self._opening:
            if self._pool is None:
                self._pool = open_pool(self._settings, read_only=True)
                await self._pool.open()
        async for row in Results(self._pool, self._settings).read(ref):
            yield row

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()


class FileBranches:
    """What a file has of the join that its record refers to."""

    def __init__(self, rows: Sequence[BranchRow]) -> None:
        self._rows = rows

    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        for row in self._rows:
            yield row


class KeptBranches:
    """The branches for one run. `lost` tells why its run ended, if results are not kept; `fault`
    that Postgres did not answer."""

    def __init__(self, source: BranchSource) -> None:
        self._source = source
        self.lost = ""
        self.fault: BadWorld | None = None

    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        """As a worker reads them. Raises `BadWorld`, or `RunEnded` where some are gone."""
        came = 0
        try:
            async for row in self._source.read(ref):
                came += 1
                yield row
        except BadWorld as e:
            self.fault = e
            raise
        gone = ref.done + ref.failed - came
        if gone:
            self.lost = f"results of join {ref.id} are not kept any more"
            raise RunEnded
