"""What people did about letters, in Postgres. A letter that nobody acted on is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import orjson

from schemas.ids import is_job_id
from schemas.state import JobError, Status
from streams.deadletter.letters import Letter, Place
from streams.postgres import SyncConn, load_queries

_SQL: Final = load_queries("streams.deadletter")


class Action(StrEnum):
    """Column `dead_letter_actions.action`."""

    REDRIVE = "redrive"
    #: Redriven with another payload.
    EDIT = "edit"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class Deed:
    """Who does what to letters, and why; `batch` joins the letters of one call."""

    action: Action
    who: str
    why: str
    batch: UUID


@dataclass(frozen=True, slots=True)
class Sent:
    """A letter's redriven record, confirmed by Kafka at `place`."""

    letter: Letter
    value: bytes
    place: Place


@dataclass(frozen=True, slots=True)
class Acted:
    """A row of `dead_letter_actions`."""

    action: str
    who: str
    why: str
    batch: UUID
    old_sha256: str
    new_sha256: str | None
    sent_topic: str | None
    sent_partition: int | None
    sent_offset: int | None
    acted_at: datetime


@dataclass(frozen=True, slots=True)
class NextStep:
    """What the step after the failed one came to."""

    status: Status
    error: JobError | None


def record_sent(conn: SyncConn, deed: Deed, sent: Sequence[Sent]) -> None:
    """Write down that letters were redriven: all of `sent` or none."""
    _record(
        conn,
        deed,
        [
            {
                **_of(each.letter),
                "new_sha256": sha256(each.value).hexdigest(),
                "sent_topic": each.place.topic,
                "sent_partition": each.place.partition,
                "sent_offset": each.place.offset,
            }
            for each in sent
        ],
    )


def record_discarded(conn: SyncConn, deed: Deed, letters: Sequence[Letter]) -> None:
    """Write down that nothing will be done about `letters`: all or none."""
    _record(conn, deed, [_of(letter) for letter in letters])


def _record(conn: SyncConn, deed: Deed, rows: list[dict[str, Any]]) -> None:
    if rows:
        values = {
            "action": deed.action.value,
            "who": deed.who,
            "why": deed.why,
            "batch": deed.batch,
            "rows": orjson.dumps(rows).decode(),
        }
        conn.execute(_SQL["record_actions"], values)


def _of(letter: Letter) -> dict[str, Any]:
    return {
        "topic_id": str(letter.topic_id),
        "topic": letter.place.topic,
        "partition": letter.place.partition,
        "offset": letter.place.offset,
        "trace_id": letter.job if is_job_id(letter.job) else None,
        "seq": letter.seq or None,
        "old_sha256": sha256(letter.value or b"").hexdigest(),
    }


class Settled:
    """Which letters somebody acted on. Reads the rows of a topic when it is first asked for."""

    def __init__(self, conn: SyncConn) -> None:
        self._conn = conn
        self._known: dict[UUID, set[tuple[int, int]]] = {}

    def __contains__(self, letter: object) -> bool:
        if not isinstance(letter, Letter):
            return False
        known = self._known.get(letter.topic_id)
        if known is None:
            rows = self._conn.execute(_SQL["settled"], {"topic_id": letter.topic_id})
            known = self._known[letter.topic_id] = {(r["partition"], r["offset"]) for r in rows}
        return (letter.place.partition, letter.place.offset) in known


def actions_on(conn: SyncConn, letter: Letter) -> list[Acted]:
    """What was done about a letter, the first action first."""
    values = {
        "topic_id": letter.topic_id,
        "partition": letter.place.partition,
        "offset": letter.place.offset,
    }
    return [Acted(**row) for row in conn.execute(_SQL["actions_on"], values)]


def next_steps(conn: SyncConn, steps: Sequence[tuple[str, int]]) -> dict[int, NextStep]:
    """For each (job, seq of the step that failed), by its number: the step after it, once the
    projection has it."""
    values = {"trace_ids": [job for job, _ in steps], "seqs": [seq for _, seq in steps]}
    return {
        row["n"] - 1: NextStep(
            Status(row["status"]),
            None if row["error"] is None else JobError.model_validate(row["error"]),
        )
        for row in conn.execute(_SQL["next_steps"], values)
    }
