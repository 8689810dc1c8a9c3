"""The timekeeper: records of `timers` become rows of table `timers`, exactly once.

Failure table: infra/decisions/0007-retries-timers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from streams.config import Settings
from streams.crashpoints import reach
from streams.positions import Move, Positions
from streams.postgres import Conn, Pool, load_queries, pooled
from streams.timers.record import Timer, TimerRecord, decode, pack

_SQL: Final = load_queries("streams.timers")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no timer, complete, and why."""

    record: TimerRecord
    reason: str


@dataclass(frozen=True, slots=True)
class Stored:
    """What a committed batch changed: new rows of `timers`, and what is no timer."""

    timers: int
    rejected: tuple[Rejected, ...]


class Timekeeper:
    """Stores batches of one `timers` topic. Safe to use from several tasks and processes.

    After a crash at any instruction a batch has been stored whole or not at all, and `positions`
    tells which.
    """

    def __init__(self, pool: Pool, settings: Settings, *, topic: str, topic_id: UUID) -> None:
        self._pool, self._settings = pool, settings
        self._positions = Positions(
            "timer_offsets", topic=topic, topic_id=topic_id, what="the timekeeper", who="timekeeper"
        )

    async def positions(self) -> dict[int, int]:
        """Next offset to read of each partition; one that is missing starts at 0.

        Raises `BadWorld`.
        """
        return await self._positions.load(self._pool, self._settings)

    async def store(self, records: Sequence[TimerRecord], moves: Sequence[Move]) -> Stored:
        """Keep the timers of `records` and advance by `moves`; or nothing.

        A record that is no timer stops nothing: it is kept in `timer_rejects` and returned.

        Raises `Moved` when a partition does not stand where its move begins; `BadWorld` when
        Postgres fails: then the outcome is unknown, and the same call again finds out.
        """
        decoded = [(record, decode(record)) for record in records]
        timers = [(record, each) for record, each in decoded if isinstance(each, Timer)]
        rejected = tuple(
            Rejected(record, each) for record, each in decoded if isinstance(each, str)
        )
        deadline_s = 4 * self._settings.database_timeout_s
        async with (
            pooled(self._pool, self._settings, deadline_s=deadline_s) as conn,
            conn.transaction(),
        ):
            # 1 Positions first: a zombie is turned away before it writes a row.
            await self._positions.advance(conn, moves)
            # 2 Rows.
            stored = await _write_timers(conn, timers)
            await _keep_rejects(conn, rejected)
            reach("timers.stored")
            # 3 Commit, by leaving the transaction.
        for each in rejected:
            _log.warning("timer_rejected", place=each.record.place, reason=each.reason)
        return Stored(stored, rejected)


async def _write_timers(conn: Conn, timers: Sequence[tuple[TimerRecord, Timer]]) -> int:
    if not timers:
        return 0
    await conn.execute(_SQL["create_staging"])
    async with conn.cursor() as cursor, cursor.copy(_SQL["copy_timers"]) as copy:
        for record, timer in timers:
            due_at = _EPOCH + timedelta(milliseconds=timer.due_ms)
            await copy.write_row(
                (
                    record.topic_id,
                    record.partition,
                    record.offset,
                    due_at,
                    timer.trace_id,
                    timer.return_topic,
                    timer.value,
                    pack(timer.headers),
                )
            )
    cursor = await conn.execute(_SQL["store_timers"])
    return cursor.rowcount


async def _keep_rejects(conn: Conn, rejected: Sequence[Rejected]) -> None:
    async with conn.cursor() as cursor:
        await cursor.executemany(_SQL["keep_reject"], [_reject_row(each) for each in rejected])


def _reject_row(rejected: Rejected) -> dict[str, object]:
    headers = rejected.record.headers
    row = rejected.record.reject_row(rejected.reason)
    return {**row, "headers": None if headers is None else pack(headers)}
