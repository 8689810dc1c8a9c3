"""The projection: `job-state` applied to Postgres, exactly once.

Failure table: infra/decisions/0005-projection.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog

from streams.config import Settings
from streams.crashpoints import reach
from streams.kafka import Record, TopicFacts
from streams.positions import Move, Moved, Positions
from streams.postgres import Conn, Pool, array_literal, for_table, load_queries, pooled
from streams.state.fold import Folded, Rejected, StateRecord, Step, fold

__all__ = ["Applied", "Move", "Moved", "Projection", "moves_of", "projection_positions"]

_SQL: Final = load_queries("streams.state")
_UPSERT: Final = for_table(_SQL, "jobs", only=("upsert_jobs",))["upsert_jobs"]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """What a committed batch changed: rows of `jobs`, new rows of `job_history`, and the rest."""

    records: int
    jobs: int
    history: int
    tombstones: int
    rejected: tuple[Rejected, ...]
    #: Next offset of each partition that moved.
    positions: dict[int, int]
    #: The valid records, as rows.
    steps: Sequence[Step] = ()


def state_record(topic: TopicFacts, message: Record) -> StateRecord:
    """A consumed message of `job-state`, which has no error."""
    return StateRecord(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
    )


def projection_positions(topic: str, topic_id: UUID) -> Positions:
    """Where the projection of one `job-state` topic stands."""
    return Positions(
        "projection_offsets",
        topic=topic,
        topic_id=topic_id,
        what="the projection",
        who="projector",
    )


def moves_of(records: Iterable[StateRecord], positions: Mapping[int, int]) -> list[Move]:
    """The moves of a batch that was read from `positions` on."""
    ends: dict[int, int] = {}
    for record in records:
        ends[record.partition] = max(ends.get(record.partition, 0), record.next_offset)
    return [Move(p, positions.get(p, 0), end) for p, end in sorted(ends.items())]


class Projection:
    """Applies batches of one `job-state` topic. Safe to use from several tasks and processes.

    After a crash at any instruction a batch has been applied whole or not at all, and `positions`
    tells which.
    """

    def __init__(self, pool: Pool, settings: Settings, *, topic: str, topic_id: UUID) -> None:
        self._pool = pool
        self._settings = settings
        self._topic = topic
        self._topic_id = topic_id
        self._positions = projection_positions(topic, topic_id)

    async def positions(self) -> dict[int, int]:
        """Next offset to read of each partition; one that is missing starts at 0.

        Raises `BadWorld`.
        """
        return await self._positions.load(self._pool, self._settings)

    async def apply(self, records: Sequence[StateRecord], moves: Sequence[Move]) -> Applied:
        """Fold `records` into `jobs`, append them to `job_history`, advance by `moves`; or nothing.

        Each record lies within a move; a move may hold none (only markers were read). Records that
        are no valid state are kept in `projection_rejects` and returned.

        Raises `Moved` when a partition does not stand where its move begins; `BadWorld` when
        Postgres fails: then the outcome is unknown, and the same call again finds out.
        """
        self._check(records, moves)
        folded = fold(records)
        # Each statement has its own time-out; this bound is for a server that stands still.
        deadline_s = 4 * self._settings.database_timeout_s
        async with (
            pooled(self._pool, self._settings, deadline_s=deadline_s) as conn,
            conn.transaction(),
        ):
            # 1 Positions first: a zombie is turned away before it writes a row.
            await self._positions.advance(conn, moves)
            # 2 Rows.
            await keep_rejects(conn, folded.rejected)
            history, jobs = await _write_steps(conn, folded)
            # 3 Commit, by leaving the transaction.
        if folded.steps:
            reach("projection.committed")
        for each in folded.rejected:
            _log.warning("job-state record rejected", place=each.record.place, reason=each.reason)
        return Applied(
            records=len(records),
            jobs=jobs,
            history=history,
            tombstones=folded.tombstones,
            rejected=tuple(folded.rejected),
            positions={m.partition: m.to_offset for m in moves},
            steps=folded.steps,
        )

    def _check(self, records: Sequence[StateRecord], moves: Sequence[Move]) -> None:
        """A batch that contradicts itself is the caller's fault, not the record's: `ValueError`."""
        ranges = {m.partition: range(m.from_offset, m.to_offset) for m in moves}
        if len(ranges) != len(moves) or any(m.to_offset < m.from_offset for m in moves):
            raise ValueError(f"Moves of {self._topic} overlap or run backwards: {moves}.")
        for record in records:
            if record.topic_id != self._topic_id:
                raise ValueError(f"{record.place} is not of {self._topic} ({self._topic_id}).")
            if record.offset not in ranges.get(record.partition, ()):
                raise ValueError(f"{record.place} lies outside of the batch's moves: {moves}.")


async def _write_steps(conn: Conn, folded: Folded) -> tuple[int, int]:
    """Rows added to `job_history` and changed in `jobs`: one COPY feeds both."""
    if not folded.steps:
        return 0, 0
    await stage_steps(conn, folded)
    history = await conn.execute(_SQL["append_history"])
    jobs = await conn.execute(_UPSERT)
    reach("projection.applied")
    return history.rowcount, jobs.rowcount


async def stage_steps(conn: Conn, folded: Folded) -> None:
    """COPY the steps to a temporary table, which is empty again when the transaction has ended."""
    await conn.execute(_SQL["create_staging"])
    async with conn.cursor() as cursor, cursor.copy(_SQL["copy_steps"]) as copy:
        for step in folded.steps:
            await copy.write_row(_staged(step, is_last=folded.last[step.trace_id] is step))


def _staged(step: Step, *, is_last: bool) -> tuple[object, ...]:
    # Lists and times as text: psycopg's own conversion of them costs as much as all other fields.
    return (*step[:-2], array_literal(step.handed_to), step.updated_at.isoformat(), is_last)


async def keep_rejects(conn: Conn, rejected: Sequence[Rejected]) -> None:
    """Keep them whole in `projection_rejects`, each once."""
    async with conn.cursor() as cursor:
        await cursor.executemany(
            _SQL["keep_reject"], [each.record.reject_row(each.reason) for each in rejected]
        )
