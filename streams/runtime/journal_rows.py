"""The rows behind the journal: who runs the stages, and which records were started and by whom.

Every method is one round trip and raises `BadWorld` when Postgres does not serve; it may then be
repeated, whatever became of the first try.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from streams.config import Settings
from streams.postgres import Conn, Pool, load_queries, pooled
from streams.runtime.account import Account
from streams.runtime.delivery import Delivery

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.runtime").items()}

#: Partition and offset.
Place = tuple[int, int]


class Started(NamedTuple):
    """A record that an earlier life had started and not committed."""

    starts: int
    first_at: datetime
    last_at: datetime


class Presence:
    """Table `workers` as one process sees it: its own rows, one for each of `groups`, the stages,
    and of `others`, agents that run no handlers."""

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        incarnation: str,
        groups: Collection[str],
        others: Collection[str] = (),
    ) -> None:
        self._pool, self._settings = pool, settings
        self._groups = [*groups, *others]
        self._values = {
            "groups": self._groups,
            "journalled": list(groups),
            "slot": settings.slot,
            "incarnation": incarnation,
            "lost_s": settings.worker_lost_s,
            "journal_s": settings.journal_s,
            "pid": os.getpid(),
            "host": platform.node(),
        }

    async def enter(self) -> bool:
        """Write the rows; whether to journal."""
        return await self._then_ask("enter", {})

    async def beat(self, accounts: Mapping[str, Account] | None = None) -> bool:
        """Say that this process lives and, by group, what else it has to say; notice those that
        live no more; whether to journal."""
        told = [(accounts or {}).get(group, Account()) for group in self._groups]
        more = {"paused": [t.paused for t in told], "accounts": [t.account for t in told]}
        return await self._then_ask("beat", more)

    async def leave(self, deadline_s: float) -> None:
        """A clean end: rows say so, and starts that led to no end are taken back."""
        async with pooled(self._pool, self._settings, deadline_s=deadline_s) as conn:
            await conn.execute(_SQL["leave"], self._values)

    async def _then_ask(self, name: str, more: Mapping[str, Any]) -> bool:
        async with _connection(self._pool, self._settings) as conn:
            await conn.execute(_SQL[name], {**self._values, **more})
            row = await (await conn.execute(_SQL["is_wanted"], self._values)).fetchone()
        return row is not None and bool(row["wanted"])


class JournalRows:
    """Table `deliveries` as one stage in one process sees it."""

    def __init__(
        self, pool: Pool, settings: Settings, incarnation: str, group: str, topic_id: UUID
    ) -> None:
        self._pool, self._settings = pool, settings
        self._me = {
            "group": group,
            "topic_id": topic_id,
            "slot": settings.slot,
            "incarnation": incarnation,
        }

    async def look_or_begin(self, deliveries: Sequence[Delivery]) -> dict[Place, Started]:
        """Those that an earlier life has started. If there are none, all are now written down."""
        async with _connection(self._pool, self._settings) as conn:
            cursor = await conn.execute(_SQL["look_or_begin"], self._with(deliveries))
            return {
                (r["partition"], r["offset"]): Started(r["starts"], r["first_at"], r["last_at"])
                for r in await cursor.fetchall()
            }

    async def begin(self, deliveries: Sequence[Delivery]) -> None:
        """Write down that they are started (once more)."""
        await self._do("begin", self._with(deliveries))

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """They are committed."""
        await self._do("settle", self._with(deliveries))

    async def undo(self, deliveries: Sequence[Delivery]) -> None:
        """They were given up in an orderly way: their last start does not count."""
        await self._do("undo", self._with(deliveries))

    async def sweep(self, heads: Mapping[int, int]) -> None:
        """Forget what lies below the committed `heads` (by partition), or in an older topic."""
        places = {"partitions": list(heads), "offsets": list(heads.values())}
        await self._do("sweep", self._me | places)

    def _with(self, deliveries: Iterable[Delivery]) -> dict[str, Any]:
        places = [place(d) for d in deliveries]
        return self._me | {
            "partitions": [p for p, _ in places],
            "offsets": [offset for _, offset in places],
            "jobs": [d.job_id for d in deliveries],
        }

    async def _do(self, name: str, values: Mapping[str, Any]) -> None:
        async with _connection(self._pool, self._settings) as conn:
            await conn.execute(_SQL[name], values)


def place(d: Delivery) -> Place:
    return d.tracker.partition, d.offset


def _connection(pool: Pool, settings: Settings) -> AbstractAsyncContextManager[Conn]:
    # The server's own time-outs come first; this one is for a server that has stopped.
    return pooled(pool, settings, deadline_s=2 * settings.database_timeout_s)
