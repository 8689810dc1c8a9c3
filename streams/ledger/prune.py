"""Claims, effects, joins and runs that nothing can ask for any more are deleted, a slice at a time.

The horizon: a record lives in its topic for `retention_ms`, and then until its segment is rolled,
which by the broker's default takes seven days more; a day on top is for clocks and clean-up. What
is younger stays; of the older, only what belongs to jobs that are over goes (sql/prune.sql). Rows
are locked with SKIP LOCKED and each slice is a transaction of its own, so two that prune at once,
or a crash, are harmless.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from streams.config import Settings
from streams.errors import BadWorld
from streams.postgres import Conn, Pool, load_queries, pooled

_log = structlog.get_logger(__name__)

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.ledger").items()}

#: `segment.ms` of a broker that was not told otherwise, and a day.
MARGIN: Final = timedelta(days=8)
_SLICE_ROWS: Final = 2_000
_EVERY_S: Final = 3_600.0
#: The beginning of time, for the first slice.
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows went, or would go; `before` is the horizon."""

    before: datetime
    claims: int
    effects: int
    #: Joins, and the branches that came to them or to none.
    joins: int = 0
    arrivals: int = 0
    #: Runs, with what they asked for, and what has happened to them or to none.
    runs: int = 0
    events: int = 0

    @property
    def nothing(self) -> bool:
        ledger = self.claims or self.effects
        return not (ledger or self.joins or self.arrivals or self.runs or self.events)


def horizon(settings: Settings, now: datetime) -> datetime:
    """Before this no record that a topic still holds can have been written."""
    return now - timedelta(milliseconds=settings.retention_ms) - MARGIN


async def prune(pool: Pool, settings: Settings, *, dry_run: bool = False) -> Pruned:
    """Delete what is beyond the horizon by Postgres' clock, or only count it. Safe to repeat.

    Raises `BadWorld`; what was deleted until then stays deleted.
    """
    async with pooled(pool, settings, deadline_s=2 * settings.database_timeout_s) as conn:
        now: datetime = await _value(conn, "clock", {})
    before = horizon(settings, now)
    claims = await _prune(pool, settings, "claim", before, dry_run)
    effects = await _prune(pool, settings, "effect", before, dry_run)
    # Branches first: a join without them is over, branches without a join are anybody's.
    arrivals = await _prune(pool, settings, "arrival", before, dry_run)
    joins = await _prune(pool, settings, "join", before, dry_run)
    # Events first, as branches.
    events = await _prune(pool, settings, "event", before, dry_run)
    runs = await _prune(pool, settings, "run", before, dry_run)
    return Pruned(before, claims, effects, joins, arrivals, runs, events)


async def _prune(pool: Pool, settings: Settings, what: str, before: datetime, dry_run: bool) -> int:
    """All slices of one table, oldest first."""
    pruned, after = 0, _START
    while True:
        values = {"after": after, "before": before, "rows": _SLICE_ROWS, "dry_run": dry_run}
        # A connection for each slice: effects and suspects of this process come in between.
        async with pooled(pool, settings, deadline_s=2 * settings.database_timeout_s) as conn:
            upto: datetime | None = await _value(conn, f"{what}_slice", values)
            if upto is None:
                return pruned
            pruned += await _value(conn, f"prune_{what}s", {**values, "upto": upto})
        after = upto


async def _value(conn: Conn, name: str, values: dict[str, Any]) -> Any:
    """The column `value` of a statement's one row."""
    row = await (await conn.execute(_SQL[name], values)).fetchone()
    assert row is not None
    return row["value"]


class Pruner:
    """Prunes once an hour, for as long as a worker runs; the pool is the caller's."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End it, in the middle of a slice if need be: that is rolled back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                pruned = await prune(self._pool, self._settings)
            except BadWorld as e:
                _log.warning("ledger_not_pruned", why=e.message)
            except Exception as e:
                # A fault of ours must not end a worker that has other things to do.
                _log.error("ledger_not_pruned", why=repr(e))
            else:
                if not pruned.nothing:
                    _log.info(
                        "ledger_pruned",
                        claims=pruned.claims,
                        effects=pruned.effects,
                        joins=pruned.joins,
                        arrivals=pruned.arrivals,
                        runs=pruned.runs,
                        events=pruned.events,
                    )
            # Several workers do not begin at once.
            await asyncio.sleep(_EVERY_S * random.uniform(0.9, 1.1))  # noqa: S311
