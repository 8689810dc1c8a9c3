"""Effects in doubt: what explains each, and the operator who looks at the desk's record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streams.config import Settings
from streams.context import DidNotHappen, Happened
from streams.ledger.doubt import resolve
from streams.postgres import SyncConn
from tests.soak.crew import Life
from tests.support.commands import Command

#: Clocks are one machine's; what was begun takes a moment to be written down.
_SLACK_S = 2.0
#: How long after a fault of Kafka a handler may still be cancelled for it.
_AFTERMATH_S = 60.0

_IN_DOUBT = """
    SELECT key, trace_id, slot, note, extract(epoch FROM claimed_at)::float8 AS claimed_at
    FROM effects
    WHERE status = 'in_doubt' OR (status = 'claimed' AND NOT idempotent AND leased_until < now())
    ORDER BY claimed_at
"""


@dataclass(frozen=True, slots=True)
class Happening:
    """A fault as it really went; epoch seconds."""

    kind: str
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """An effect in doubt. `because`: what explains it; None if nothing does."""

    key: str
    trace_id: str
    note: str
    because: str | None


def doubts(conn: SyncConn, happenings: Sequence[Happening], lives: Sequence[Life]) -> list[Doubt]:
    """All effects that are in doubt now, each with its explanation."""
    return [
        Doubt(row["key"], row["trace_id"], row["note"] or "", _because(row, happenings, lives))
        for row in conn.execute(_IN_DOUBT.encode()).fetchall()
    ]


def _because(
    row: dict[str, Any], happenings: Sequence[Happening], lives: Sequence[Life]
) -> str | None:
    note, at = row["note"] or "", row["claimed_at"]
    if note.startswith("ConnectionError"):
        return _during(happenings, at, "desk_answers_lost")
    for life in lives:
        if life.slot == row["slot"] and life.began_at <= at <= (life.ended_at or 0.0):
            return f"slot {life.slot} ended with {life.code}"
    if note.startswith("CancelledError"):
        return _during(happenings, at, "kafka", "commit", "worker", "one_to_three")
    return None


def _during(happenings: Sequence[Happening], at: float, *kinds: str) -> str | None:
    for each in happenings:
        late = each.ended_at + (_SLACK_S if each.kind.startswith("desk") else _AFTERMATH_S)
        if each.kind.startswith(kinds) and each.began_at - _SLACK_S <= at <= late:
            return each.kind
    return None


def settle(conn: SyncConn, settings: Settings, found: Sequence[Doubt], record: Path) -> None:
    """As a person would: look each up in the desk's record, say what it shows, redrive the job."""
    with record.open() as lines:
        filed = {entry["key"]: entry["n"] for entry in map(json.loads, lines)}
    for doubt in found:
        n = filed.get(doubt.key)
        answer = DidNotHappen() if n is None else Happened(json.dumps({"n": n}))
        resolve(conn, doubt.key, answer, actor="operator", reason="the desk's record")
    if found:
        redrive = Command(settings, record.parent)
        done = redrive("dlq", "redrive", *(doubt.trace_id for doubt in found))
        assert done.returncode == 0, done.stderr
