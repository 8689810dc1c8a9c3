"""What `jobs` must hold, folded in memory from records that a test has made: a second way to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from schemas.state import JobError, Status
from streams.postgres import SyncConn
from streams.state.difference import Difference, compare
from streams.state.fold import Rejected, StateRecord, Step, fold
from streams.state.views import Job, job_of, parsed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALL_JOBS = "SELECT *, data::text AS data, usage::text AS usage FROM jobs ORDER BY trace_id"


@dataclass(frozen=True, slots=True)
class Verified:
    """How many jobs the log holds, and each difference."""

    jobs: int
    differences: tuple[Difference, ...]
    rejected: tuple[Rejected, ...]


def verify(conn: SyncConn, states: Iterable[StateRecord]) -> Verified:
    """Compare `jobs` with the fold of `states`: a whole topic, read to where Postgres is."""
    folded = fold(states)
    expected = {trace_id: job_of_step(step) for trace_id, step in folded.last.items()}
    found = {row["trace_id"]: job_of(row) for row in conn.execute(_ALL_JOBS)}
    differences = [
        difference
        for trace_id in sorted(expected.keys() | found.keys())
        for difference in compare(expected.get(trace_id), found.get(trace_id))
    ]
    return Verified(len(expected), tuple(differences), tuple(folded.rejected))


def job_of_step(step: Step) -> Job:
    """What `jobs` must hold when `step` is a job's last."""
    return Job(
        trace_id=step.trace_id,
        flow=step.flow,
        stage=step.stage,
        status=Status(step.status),
        seq=step.seq,
        attempts=step.attempts,
        data=parsed(step.data),
        error=None if step.error is None else JobError.model_validate_json(step.error),
        parent=step.parent,
        worker=step.worker,
        usage=parsed(step.usage),
        to=step.handed_to,
        born_at=None if step.born_us is None else _EPOCH + timedelta(microseconds=step.born_us),
        updated_at=step.updated_at,
        wakes_at=step.wakes_at,
    )
