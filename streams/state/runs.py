"""The runs of a job as people ask for them (decision 16): what has happened to each, what it asked
for, what it waits for. Reads only; as far as the join agent and the projection have come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from schemas.ids import child_id, parent_of
from schemas.state import JOIN, JobError, Status
from streams.postgres import SyncConn, load_queries
from streams.state.forks import Branch

_SQL: Final = load_queries("streams.state")
#: Of a value, as it is told in a line.
_VALUE_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the orchestration `stage`, or with `signal` a wait of that stage, which the job
    `parent` began with its step `seq`. `status`: open, parked (it waits for a person, and perhaps
    for other code), failed or ended. `waits` says in words what it waits for."""

    parent: str
    seq: int
    flow: str
    stage: str
    signal: str | None
    status: str
    #: The job's last step that it made.
    step: int
    commands: int
    calls: int
    waits: tuple[str, ...]
    began_at: datetime
    ended_at: datetime | None

    @property
    def id(self) -> str:
        return f"{self.parent}:{self.seq}"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened to a run, by the clock of the broker; `run` 0: before one had begun.

    `step` is what the job did then, None if nothing; `ended` how the run ended by it, if it did.
    """

    run: int
    position: int
    kind: str
    ref: str
    detail: str
    value: Any
    at: datetime
    step: int | None
    ended: str | None
    ended_to: str | None
    #: When the join agent kept it.
    happened_at: datetime

    @property
    def ending(self) -> str:
        """How it ended the run: `done`, `handed to restock`; empty if it did not."""
        return f"handed to {self.ended_to}" if self.ended_to else self.ended or ""

    @property
    def by(self) -> str:
        """Who sent a signal, or cancelled."""
        told = self.value.get("by") if isinstance(self.value, dict) else None
        return str(told or "") if self.kind in ("signal", "cancel") else ""

    @property
    def text(self) -> str:
        """`call /2 done`, `signal approval by ann: true`."""
        match self.kind:
            case "call":
                return f"call /{self.ref} {self.detail}"
            case "timer":
                return f"timer of command {self.ref}"
            case "signal":
                value = self.value.get("value") if isinstance(self.value, dict) else None
                return f"signal {self.detail} by {self.by or '?'}: {_short(value)}"
            case "cancel":
                reason = self.value.get("reason") if isinstance(self.value, dict) else None
                return f"cancel by {self.by or '?'}" + (f": {reason}" if reason else "")
            case "redrive":
                return f"redrive of step {self.ref}"
        return self.kind


@dataclass(frozen=True, slots=True)
class RunCommand:
    """What a run asked for, as the `n`-th in the code's order, after the event at `position`."""

    run: int
    n: int
    kind: str
    name: str
    child: int | None
    shielded: bool
    due_at: datetime | None
    position: int

    @property
    def text(self) -> str:
        """`call score (/3)`, `signal approval until 2026-…`."""
        text = f"{self.kind} {self.name}".strip()
        if self.child is not None:
            text += f" (/{self.child})"
        return text if self.due_at is None else f"{text} until {_second(self.due_at)}"


@dataclass(frozen=True, slots=True)
class RunMove:
    """What a step of a job did of its run: `after` what had happened it asked for `asked`;
    `ended` says how it ended the run, if it did. With `begins` it began the run, or the wait."""

    stage: str
    after: tuple[str, ...]
    asked: tuple[str, ...]
    ended: str
    begins: bool = False


def waits_in_run(
    status: Status, stage: str, wakes_at: datetime | None, error: JobError | None
) -> bool:
    """Whether a job in this state waits for what its run has asked for."""
    return status is Status.WAITING and stage == JOIN and wakes_at is None and error is None


def runs_of(conn: SyncConn, parent: str) -> list[Run]:
    """The runs and waits of a job (full id), in their order; none while the join agent has yet to
    read of the first."""
    rows = conn.execute(_SQL["runs_of"], {"parent": parent})
    return [Run(**{**row, "waits": tuple(row["waits"])}) for row in rows]


def run_events(conn: SyncConn, parent: str) -> list[RunEvent]:
    """All that has happened to the runs of a job, in order."""
    return [_event(row) for row in conn.execute(_SQL["run_events_of"], {"parent": parent})]


def run_commands(conn: SyncConn, parent: str) -> list[RunCommand]:
    """All that the runs of a job asked for, in the order of the code."""
    found = []
    for row in conn.execute(_SQL["run_commands_of"], {"parent": parent}):
        due_us = row.pop("due_us")
        found.append(RunCommand(**row, due_at=None if due_us is None else _time(due_us)))
    return found


def calls_under_way(conn: SyncConn, run: Run, limit: int) -> tuple[Branch, ...]:
    """The first `limit` calls of a run that have not come, each with its job as it stands."""
    values = {"parent": run.parent, "run": run.seq, "limit": limit}
    return tuple(
        Branch(
            id=child_id(run.parent, row["number"]),
            number=row["number"],
            stage=row["stage"] or row["name"],
            status=Status(row["status"]) if row["known"] else None,
            to=tuple(row["handed_to"] or ()),
            error=None if row["error"] is None else JobError.model_validate(row["error"]),
            wakes_at=row["wakes_at"],
            updated_at=row["updated_at"],
        )
        for row in conn.execute(_SQL["calls_under_way"], values)
    )


def is_called(conn: SyncConn, job: str) -> bool:
    """Whether a job (full id) is a call of its parent's run, and not a branch of a fork."""
    parent = parent_of(job)
    if parent is None:
        return False
    values = {"parent": parent, "child": int(job.rpartition("/")[2])}
    return conn.execute(_SQL["caller_of"], values).fetchone() is not None


def run_moves(conn: SyncConn, parent: str) -> dict[int, RunMove]:
    """By its steps, what the job's runs did; empty for a job that has none."""
    runs = runs_of(conn, parent)
    if not runs:
        return {}
    return moves_of(runs, run_events(conn, parent), run_commands(conn, parent))


def moves_of(
    runs: Sequence[Run], events: Sequence[RunEvent], commands: Sequence[RunCommand]
) -> dict[int, RunMove]:
    """The same. Pure."""
    found: dict[int, RunMove] = {}
    for run in runs:
        waits = () if run.signal is None else (f"signal {run.signal}",)
        found[run.seq] = RunMove(run.stage, (), waits, "", begins=True)
        asked = [c for c in commands if c.run == run.seq]
        for since, event in _steps(e for e in events if e.run == run.seq):
            found[event.step or 0] = RunMove(
                stage=run.stage,
                after=tuple(_told(e, asked) for e in since),
                asked=tuple(c.text for c in asked if c.position == event.position),
                ended=event.ending,
            )
    return found


def _steps(events: Iterable[RunEvent]) -> Iterator[tuple[list[RunEvent], RunEvent]]:
    """Each event that led to a step, with those since the one before."""
    since: list[RunEvent] = []
    for event in events:
        since.append(event)
        if event.step is not None:
            yield since, event
            since = []


def _told(event: RunEvent, asked: Sequence[RunCommand]) -> str:
    """With the name of what was called, or slept or waited for."""
    if event.kind == "call":
        name = next((c.name for c in asked if str(c.child) == event.ref), "?")
        return f"call {name} (/{event.ref}) {event.detail}"
    if event.kind == "timer":
        of = next((c for c in asked if str(c.n) == event.ref), None)
        if of is not None:
            return "sleep over" if of.kind == "sleep" else f"time for {of.kind} {of.name} over"
    return event.text


def _event(row: dict[str, Any]) -> RunEvent:
    return RunEvent(
        run=row["run"],
        position=row["position"],
        kind=row["kind"],
        ref=row["ref"],
        detail=row["detail"],
        value=_json(bytes(row["value"])),
        at=_time(row["at_us"]),
        step=row["step"],
        ended=row["end_status"],
        ended_to=row["end_to"],
        happened_at=row["happened_at"],
    )


def _json(value: bytes) -> Any:
    try:
        return orjson.loads(value) if value else None
    except orjson.JSONDecodeError:
        return value.decode(errors="replace")


def _short(value: Any) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1e6, UTC)


def _second(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
