"""What went over the edges of a flow, by `job_history`: as far as the projection stands."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from streams.postgres import SyncConn, load_queries
from streams.state.graph import SUBMIT, Edge, Traffic

_SQL: Final = load_queries("streams.state")


def traffic(conn: SyncConn, flow: str, since: datetime, until: datetime) -> dict[Edge, Traffic]:
    """The traffic of `flow` from `since` to before `until`, by edge, beside the jobs of the window
    of the same length before it. Submissions are counted by their first step."""
    since_us, until_us = _us(since), _us(until)
    window = {
        "flow": flow,
        "before_us": since_us - (until_us - since_us),
        "since_us": since_us,
        "until_us": until_us,
    }
    found: dict[Edge, Traffic] = {}
    for row in conn.execute(_SQL["handed_over"], window):
        edge = Edge(row["source"], row["target"])
        found[edge] = Traffic(jobs=row["jobs"], jobs_before=row["jobs_before"])
    for row in conn.execute(_SQL["arrived"], window):
        edge = Edge(row["source"], row["target"])
        seen = found.get(edge, Traffic())
        found[edge] = replace(
            seen,
            jobs=row["ended"] if edge.source == SUBMIT else seen.jobs,
            ended=row["ended"],
            failed=row["failed"],
            p50_s=row["p50_s"],
            p95_s=row["p95_s"],
        )
    return found


def _us(moment: datetime) -> int:
    return int(moment.timestamp() * 1e6)
