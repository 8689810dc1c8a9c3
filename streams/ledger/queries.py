"""What commands show of the ledger and of the suspects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from streams.postgres import SyncConn, load_queries

_SQL: Final = load_queries("streams.ledger")


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of the ledger; times are UTC-aware, `result` is what JSON holds."""

    key: str
    trace_id: str
    flow: str
    stage: str
    name: str
    status: str
    idempotent: bool
    result: Any
    slot: int
    incarnation: str
    fence: int
    calls: int
    leased_until: datetime
    claimed_at: datetime
    settled_at: datetime | None
    note: str | None


@dataclass(frozen=True, slots=True)
class SkipCount:
    """Deliveries that a stage skipped for one reason (`duplicate`, `finished`)."""

    flow: str
    stage: str
    reason: str
    records: int
    last_at: datetime


def list_effects(conn: SyncConn, *, in_doubt: bool = False, limit: int = 100) -> list[Effect]:
    """The latest effects, newest claim first.

    In doubt are also claims of dead attempts that nobody has come back to yet, unless repeatable.
    """
    values = {"in_doubt": in_doubt, "limit": limit}
    return [Effect(**row) for row in conn.execute(_SQL["list_effects"].encode(), values)]


def skip_counts(conn: SyncConn) -> list[SkipCount]:
    """All counts, by flow, stage and reason."""
    return [SkipCount(**row) for row in conn.execute(_SQL["skip_counts"].encode())]
