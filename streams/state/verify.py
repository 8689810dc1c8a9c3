"""Does `jobs` equal the fold of the log? Promise P6, checked row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from schemas.state import JobError, Status
from streams.postgres import SyncConn
from streams.state.fold import Rejected, StateRecord, Step, fold
from streams.state.queries import all_jobs
from streams.state.views import Job, parsed

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Difference:
    """One job on which the log and Postgres disagree; a missing side is None."""

    trace_id: str
    field: str
    in_log: Any
    in_postgres: Any

    def __str__(self) -> str:
        if self.field == "job":
            where = "the log" if self.in_postgres is None else "Postgres"
            return f"Job {self.trace_id} is only in {where}."
        return (
            f"Job {self.trace_id}: {self.field} is {self.in_log!r} in the log and "
            f"{self.in_postgres!r} in Postgres."
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a comparison: how many jobs the log holds, and each difference."""

    jobs: int
    differences: tuple[Difference, ...]
    rejected: tuple[Rejected, ...]


def verify(conn: SyncConn, states: Iterable[StateRecord]) -> Verified:
    """Compare `jobs` with the fold of `states`, which is a whole topic, read to where Postgres is.

    Holds one row per job of the log in memory. Changes nothing.
    """
    folded = fold(states)
    expected = {trace_id: job_of_step(step) for trace_id, step in folded.last.items()}
    differences: list[Difference] = []
    missing = dict(expected)
    for found in all_jobs(conn):
        job = missing.pop(found.trace_id, None)
        differences += compare(job, found)
    for job in missing.values():
        differences += compare(job, None)
    return Verified(len(expected), tuple(differences), tuple(folded.rejected))


def compare(in_log: Job | None, in_postgres: Job | None) -> Iterator[Difference]:
    """The differences of one job; at least one side is given."""
    if in_log is None or in_postgres is None:
        present = in_log or in_postgres
        if present is not None:
            yield Difference(present.trace_id, "job", in_log, in_postgres)
        return
    for each in fields(Job):
        ours, theirs = getattr(in_log, each.name), getattr(in_postgres, each.name)
        if ours != theirs:
            yield Difference(in_log.trace_id, each.name, ours, theirs)


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
