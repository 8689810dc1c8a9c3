"""What Postgres knows: time, jobs, workers, timers, the journal. Reads only."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from streams.positions import positions_of
from streams.postgres import SyncConn, load_queries
from streams.state.views import Job
from streams.why.facts import Started, State, WorkerRow

_SQL: Final = load_queries("streams.why")


def now(conn: SyncConn) -> datetime:
    """Postgres' clock."""
    row = conn.execute(_SQL["now"]).fetchone()
    assert row is not None, "it always has one row"
    found: datetime = row["now"]
    return found


def state_of(job: Job) -> State:
    return State(
        job=job.trace_id,
        flow=job.flow,
        stage=job.stage,
        status=job.status,
        seq=job.seq,
        attempts=job.attempts,
        to=job.to,
        error=job.error,
        wakes_at=job.wakes_at,
        updated_at=job.updated_at,
    )


def workers(conn: SyncConn, group: str) -> tuple[WorkerRow, ...]:
    """The latest life of each slot of `group`, by slot."""
    rows = conn.execute(_SQL["workers"], {"group": group})
    return tuple(WorkerRow(**row) for row in rows)


def started(conn: SyncConn, topic_id: UUID, partition: int, offset: int) -> Started | None:
    """The journal's row of a record, while the journal is on."""
    place = {"topic_id": topic_id, "partition": partition, "offset": offset}
    row = conn.execute(_SQL["started"], place).fetchone()
    return None if row is None else Started(**row)


def pending_timer(conn: SyncConn, job: str, due_at: datetime) -> tuple[datetime | None, str | None]:
    """When the job's timer is due, and why Kafka refused it, if so; None, None: no row."""
    values = {"trace_id": job, "due_at": due_at}
    for name in ("timer_at", "timer"):
        row = conn.execute(_SQL[name], values).fetchone()
        if row is not None:
            return row["due_at"], row["refused"]
    return None, None


def position(conn: SyncConn, table: str, topic_id: UUID, partition: int) -> int:
    """Next offset to apply, in a table with the columns of `projection_offsets`."""
    return positions_of(conn, table, topic_id).get(partition, 0)
