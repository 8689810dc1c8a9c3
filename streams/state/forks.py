"""The forks of a job as people ask for them: each join, its branches, and what keeps those that are
missing. Reads only; as far as the join agent and the projection have come.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from schemas.ids import child_id
from schemas.state import JOIN, JobError, Status
from streams.postgres import SyncConn, load_queries

_SQL: Final = load_queries("streams.state")


@dataclass(frozen=True, slots=True)
class Join:
    """One fork of the job `parent`, by its step `seq`, and what has come of its branches.

    `done` and `failed` are those of when it joined; until then those of now. `late` came after it
    had joined, which changes nothing.
    """

    parent: str
    seq: int
    flow: str
    forked_by: str
    #: The stage that gets the results.
    stage: str
    first: int
    expected: int
    rule: str
    deadline_at: datetime | None
    #: open, joined, failed or cancelled; a failed one is opened again by a redrive of its letter.
    status: str
    reason: str | None
    done: int
    failed: int
    late: int
    forked_at: datetime
    closed_at: datetime | None

    @property
    def id(self) -> str:
        return f"{self.parent}:{self.seq}"

    @property
    def missing(self) -> int:
        """Branches that have not come, neither done nor failed."""
        return self.expected - self.done - self.failed

    @property
    def progress(self) -> str:
        """`37/50 branches, 2 failed`."""
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.done:,}/{self.expected:,} branches{failed}"


@dataclass(frozen=True, slots=True)
class Branch:
    """A child of a fork. `came` is how it came to the join, None if it has not; what is below that
    is its job as the projection has it, with `status` None while it has taken no step."""

    id: str
    number: int
    came: Status | None = None
    late: bool = False
    came_at: datetime | None = None
    stage: str = ""
    status: Status | None = None
    to: tuple[str, ...] = ()
    error: JobError | None = None
    wakes_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def needs_redrive(self) -> bool:
        """Whether only a person brings it on: it failed, or is parked."""
        if self.status is Status.FAILED:
            return True
        if self.in_run:
            return False
        return self.status is Status.WAITING and self.wakes_at is None and self.to != (JOIN,)

    @property
    def in_run(self) -> bool:
        """Whether it waits for what a run of its own has asked for."""
        waits = self.status is Status.WAITING and self.wakes_at is None
        return waits and self.stage == JOIN and self.error is None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """So many `branches` without a result are at the same; `example` is the first of them, without
    the message of its error."""

    branches: int
    example: Branch


@dataclass(frozen=True, slots=True)
class ForkStory:
    """A fork as a trace tells it. `last` is the branch that ended last, of those that are over."""

    join: Join
    last: str | None
    last_at: datetime | None


def waits_for_branches(status: Status, to: tuple[str, ...]) -> bool:
    """Whether a job in this state waits for the branches of its fork."""
    return status is Status.WAITING and to == (JOIN,)


def joins_of(conn: SyncConn, parent: str) -> list[Join]:
    """The joins of a job (full id), in the order of its forks; none for one that has not forked, or
    whose fork the join agent has yet to read."""
    return [Join(**row) for row in conn.execute(_SQL["joins_of"], {"parent": parent})]


def branches_of(
    conn: SyncConn, join: Join, limit: int, *, whole: bool = False
) -> tuple[Branch, ...]:
    """The first `limit` branches of a join that gave no result in time, or of all if `whole`."""
    rows = conn.execute(_SQL["branches"], {**_range(join), "limit": limit, "whole": whole})
    return tuple(_branch(join, row) for row in rows)


def obstacles(conn: SyncConn, join: Join) -> tuple[Obstacle, ...]:
    """What the branches without a result are at, the commonest first."""
    found = []
    for row in conn.execute(_SQL["obstacles"], _range(join)):
        example = Branch(
            id=child_id(join.parent, row["number"]),
            number=row["number"],
            stage=row["stage"] or "",
            status=Status(row["status"]) if row["known"] else None,
            to=tuple(row["handed_to"] or ()),
            error=None if row["kind"] is None else JobError(kind=row["kind"], message=""),
            wakes_at=row["wakes_at"],
        )
        found.append(Obstacle(row["branches"], example))
    return tuple(found)


def fork_stories(conn: SyncConn, parent: str) -> list[ForkStory]:
    """The forks of a job (full id) for its trace, in their order."""
    found = []
    for join in joins_of(conn, parent):
        row = conn.execute(_SQL["last_branch"], _range(join)).fetchone()
        last, at = (row["trace_id"], row["updated_at"]) if row is not None else (None, None)
        found.append(ForkStory(join, last, at))
    return found


def _range(join: Join) -> dict[str, Any]:
    return {"parent": join.parent, "first": join.first, "expected": join.expected}


def _branch(join: Join, row: dict[str, Any]) -> Branch:
    return Branch(
        id=child_id(join.parent, row["number"]),
        number=row["number"],
        came=None if row["came"] is None else Status(row["came"]),
        late=bool(row["late"]),
        came_at=row["arrived_at"],
        stage=row["stage"] or "",
        status=Status(row["status"]) if row["known"] else None,
        to=tuple(row["handed_to"] or ()),
        error=None if row["error"] is None else JobError.model_validate(row["error"]),
        wakes_at=row["wakes_at"],
        updated_at=row["updated_at"],
    )
