"""On what the log and Postgres disagree, by job and field. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from streams.state.views import Job


@dataclass(frozen=True, slots=True)
class Difference:
    """One job on which the log and Postgres disagree; a missing side is None.

    `field` is one of `Job`; `job` where one side lacks the whole job; `history` where `job_history`
    lacks a step, which `in_log` names with its place.
    """

    trace_id: str
    field: str
    in_log: Any
    in_postgres: Any

    def __str__(self) -> str:
        if self.field == "job":
            where = "the log" if self.in_postgres is None else "Postgres"
            return f"Job {self.trace_id} is only in {where}."
        if self.field == "history":
            return f"Job {self.trace_id}: job_history lacks {self.in_log}."
        return (
            f"Job {self.trace_id}: {self.field} is {self.in_log!r} in the log and "
            f"{self.in_postgres!r} in Postgres."
        )


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
