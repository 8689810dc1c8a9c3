"""What the command line asks of the projection. Read only; results are frozen values.

Connections come from `streams.postgres.connect`, which turns faults into `BadWorld`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from schemas.state import Status
from streams.errors import HandoffError
from streams.postgres import SyncConn, load_queries
from streams.state.views import Count, Effect, Hop, Job, Latency, effect_of, hop_of, job_of

_SQL: Final = load_queries("streams.state")
#: How many candidates an ambiguous prefix names.
_CANDIDATES: Final = 5


class NoSuchJob(HandoffError):
    """No job of the projection has such an id, or several have.

    Operator action: give more digits; a job submitted just now appears once its first step commits.
    """


def list_jobs(
    conn: SyncConn,
    *,
    status: Status | None = None,
    stage: str | None = None,
    flow: str | None = None,
    since: datetime | None = None,
    after: tuple[datetime, str] | None = None,
    roots: bool = False,
    limit: int = 50,
) -> list[Job]:
    """Jobs, the latest change first; `roots` leaves out the branches of forks. The next page begins
    `after` the last job's `cursor`."""
    after_time, after_id = after or (None, None)
    rows = conn.execute(
        _SQL["list_jobs"],
        {
            "status": status and status.value,
            "stage": stage,
            "flow": flow,
            "since": since,
            "roots": roots,
            "after_time": after_time,
            "after_id": after_id,
            "limit": limit,
        },
    )
    return [job_of(row) for row in rows]


def find_job(conn: SyncConn, id_prefix: str) -> Job:
    """The job whose id is `id_prefix`, or the only one that begins with it.

    Raises `NoSuchJob`, a sentence that names some candidates where there are several.
    """
    prefix = id_prefix.strip().lower()
    if not prefix or set(prefix) - set("0123456789abcdef/"):
        raise NoSuchJob(f"{id_prefix!r} is not the beginning of a job id: hex digits are expected.")
    rows = conn.execute(_SQL["find_jobs"], {"prefix": prefix, "limit": _CANDIDATES + 1})
    found = [job_of(row) for row in rows]
    if not found:
        raise NoSuchJob(f"No job has an id that begins with {prefix}.", prefix=prefix)
    if len(found) > 1 and found[0].trace_id != prefix:
        some = ", ".join(job.trace_id for job in found[:_CANDIDATES])
        more = " and more" if len(found) > _CANDIDATES else ""
        raise NoSuchJob(
            f"Several jobs begin with {prefix}: {some}{more}. Give more digits.",
            prefix=prefix,
            several=True,
        )
    return found[0]


def history(conn: SyncConn, trace_id: str) -> list[Hop]:
    """All committed steps of one job (full id), by seq; empty for a job that is not known."""
    return [hop_of(row) for row in conn.execute(_SQL["history"], {"trace_id": trace_id})]


def counts(
    conn: SyncConn, *, flow: str | None = None, since: datetime | None = None
) -> list[Count]:
    """Jobs by flow, stage and status, those that changed since `since`."""
    rows = conn.execute(_SQL["counts"], {"flow": flow, "since": since})
    return [Count(row["flow"], row["stage"], Status(row["status"]), row["jobs"]) for row in rows]


def latencies(conn: SyncConn, *, flow: str | None = None, since: datetime | None = None) -> Latency:
    """End to end, birth to the last commit, of the jobs that ended and changed since `since`."""
    row = conn.execute(_SQL["latencies"], {"flow": flow, "since": since}).fetchone()
    assert row is not None, "an aggregate has one row"
    return Latency(row["jobs"], row["p50_s"], row["p95_s"])


def effects_of(conn: SyncConn, trace_id: str) -> list[Effect]:
    """The side effects of one job (full id) in the order of their claims."""
    return [effect_of(row) for row in conn.execute(_SQL["effects_of"], {"trace_id": trace_id})]
