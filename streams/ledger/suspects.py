"""Suspects: records that may have been delivered before, checked in batches.

A hand-off that our own transaction wrote, read for the first time, is no suspect and pays nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from streams.config import Settings
from streams.crashpoints import reach
from streams.postgres import Conn, Pool, load_queries, plain_array, pooled

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.ledger").items()}


class Suspect(NamedTuple):
    """One delivered record. `trace_id` is a job id (`schemas.ids.is_job_id`)."""

    trace_id: str
    #: The step that this record's consumer will write.
    seq: int
    topic_id: UUID
    partition: int
    offset: int
    #: A submission whose key is its id, or what a timer brought back: the first record to claim the
    #: step owns it.
    claim: bool
    #: At or below the consumed horizon of its partition: the group was reset.
    check_finished: bool


class Verdict(StrEnum):
    """What to do with a suspect; the last two are skipped, and have been counted."""

    RUN = "run"
    #: Another record owns the step.
    DUPLICATE = "duplicate"
    #: The step is in the history.
    FINISHED = "finished"


class SuspectCheck:
    """The checks of one stage. All methods raise `BadWorld`; after it, or a crash, check again.

    A claim is kept by the record's coordinates, so that the same record passes however often it is
    delivered. The counts of skips are of deliveries: a batch that is checked again counts again.
    """

    def __init__(self, pool: Pool, settings: Settings, flow: str, stage: str) -> None:
        self._pool = pool
        self._settings = settings
        self._where = {"flow": flow, "stage": stage}

    async def check(self, suspects: Sequence[Suspect]) -> list[Verdict]:
        """One verdict per suspect, in order; of equal ids in the batch the lowest offset wins.

        One round trip where all are new claims; one more each if some step was claimed before, and
        if some are to be checked for being finished.
        """
        verdicts = [Verdict.RUN] * len(suspects)
        if not suspects:
            return verdicts
        async with self._connection() as conn:
            # Finished first: after a reset most are, and need no claim.
            checked = [n for n, s in enumerate(suspects) if s.check_finished]
            if checked:
                for n in await self._finished(conn, suspects, checked):
                    verdicts[n] = Verdict.FINISHED
            for group in _claim_groups(suspects, verdicts):
                for n in await self._lost(conn, suspects, group):
                    verdicts[n] = Verdict.DUPLICATE
        return verdicts

    async def _finished(
        self, conn: Conn, suspects: Sequence[Suspect], checked: list[int]
    ) -> list[int]:
        values = {
            **self._where,
            "trace_ids": plain_array([suspects[n].trace_id for n in checked]),
            "seqs": plain_array([str(suspects[n].seq) for n in checked]),
        }
        cursor = await conn.execute(_SQL["finished_steps"], values, prepare=True)
        return [checked[row["n"] - 1] for row in await cursor.fetchall()]

    async def _lost(self, conn: Conn, suspects: Sequence[Suspect], group: list[int]) -> list[int]:
        """Claim the steps of a group (one topic, one seq); those that belong to other records."""
        members = [suspects[n] for n in group]
        values = {
            **self._where,
            "seq": members[0].seq,
            "topic_id": members[0].topic_id,
            "trace_ids": plain_array([s.trace_id for s in members]),
            "partitions": plain_array([str(s.partition) for s in members]),
            "offsets": plain_array([str(s.offset) for s in members]),
        }
        cursor = await conn.execute(_SQL["claim_steps"], values, prepare=True)
        reach("suspect.claimed")
        if cursor.rowcount == len(members):
            return []
        cursor = await conn.execute(_SQL["lost_claims"], values, prepare=True)
        return [group[row["n"] - 1] for row in await cursor.fetchall()]

    async def consumed_horizon(self, topic_id: UUID, partition: int) -> int:
        """Highest offset of a partition that the projection knows as consumed, -1 if none."""
        values = {"topic_id": topic_id, "partition": partition}
        async with self._connection() as conn:
            cursor = await conn.execute(_SQL["consumed_horizon"], values)
            row = await cursor.fetchone()
        horizon: int | None = row["horizon"] if row is not None else None
        return -1 if horizon is None else horizon

    async def projected_offsets(self, topic_id: UUID) -> dict[int, int]:
        """Next offset that the projection applies, by partition of the `job-state` topic."""
        async with self._connection() as conn:
            cursor = await conn.execute(_SQL["projected_offsets"], {"topic_id": topic_id})
            return {row["partition"]: row["next_offset"] for row in await cursor.fetchall()}

    def _connection(self) -> AbstractAsyncContextManager[Conn]:
        # The server's own time-outs come first; this one is for a server that has stopped.
        deadline_s = 2 * self._settings.database_timeout_s
        return pooled(self._pool, self._settings, deadline_s=deadline_s)


def _claim_groups(suspects: Sequence[Suspect], verdicts: Sequence[Verdict]) -> list[list[int]]:
    """Positions of the claims still wanted, by topic and seq, in an order all workers share."""
    groups: defaultdict[tuple[int, UUID], list[int]] = defaultdict(list)
    for n, each in enumerate(suspects):
        if each.claim and verdicts[n] is Verdict.RUN:
            groups[each.seq, each.topic_id].append(n)
    return [groups[k] for k in sorted(groups)]
