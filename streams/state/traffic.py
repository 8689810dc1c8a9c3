"""What went over the edges of a flow, by `job_history`: as far as the projection stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from streams.postgres import SyncConn, load_queries
from streams.state.graph import SUBMIT, Edge, Traffic

_SQL: Final = load_queries("streams.state")
#: Of so many steps it is looked up where they came from, about: a second or three.
SAMPLE_STEPS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Window:
    """The traffic of a flow from `since` to before `until`, by edge. Latencies and errors are those
    of one job in `sample`."""

    since: datetime
    until: datetime
    edges: Mapping[Edge, Traffic]
    sample: int = 1

    @property
    def seconds(self) -> float:
        return (self.until - self.since).total_seconds()


def traffic(
    conn: SyncConn,
    flow: str,
    since: datetime,
    until: datetime,
    *,
    sample_steps: int = SAMPLE_STEPS,
) -> Window:
    """The traffic of `flow` beside that of the window of the same length before it."""
    since_us, until_us = _us(since), _us(until)
    values = {
        "flow": flow,
        "before_us": since_us - (until_us - since_us),
        "since_us": since_us,
        "until_us": until_us,
    }
    found: dict[Edge, Traffic] = {}
    for row in conn.execute(_SQL["handed_over"], values):
        edge = Edge(row["source"], row["target"])
        found[edge] = Traffic(jobs=row["jobs"], jobs_before=row["jobs_before"])
    sample = 1 + sum(seen.jobs for seen in found.values()) // sample_steps
    for row in conn.execute(_SQL["submitted"], values):
        edge = Edge(SUBMIT, row["target"])
        found[edge] = Traffic(jobs=row["jobs"], jobs_before=row["jobs_before"])
    for row in conn.execute(_SQL["forked"], values):
        edge = Edge(row["source"], row["target"])
        handed = found.get(edge, Traffic())
        found[edge] = Traffic(
            jobs=handed.jobs + row["jobs"], jobs_before=handed.jobs_before + row["jobs_before"]
        )
    for row in conn.execute(_SQL["arrived"], {**values, "sample": sample}):
        edge = Edge(row["source"], row["target"])
        found[edge] = replace(
            found.get(edge, Traffic()),
            ended=row["ended"],
            failed=row["failed"],
            p50_s=row["p50_s"],
            p95_s=row["p95_s"],
        )
    return Window(since, until, found, sample)


def _us(moment: datetime) -> int:
    return int(moment.timestamp() * 1e6)
