"""Effects in doubt: a person who has looked at the target says what happened.

`resolve` holds the row's lock while it decides, so it and a settlement come one after the other. It
raises the fence: the attempt in doubt can no longer release, doubt or renew its claim. That it was
done is heard all the same: as the result, if the effect was resolved as not happened and has not
been done again, and always as a record in `effect_actions`. After a crash all of a resolution is
there, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from streams.context import DidNotHappen, Happened
from streams.errors import BadRecord, BadSetup
from streams.ledger.rules import Status
from streams.postgres import SyncConn, load_queries

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.ledger").items()}


@dataclass(frozen=True, slots=True)
class Found:
    """An effect as a person finds it; `expired` is its lease, by Postgres' clock.

    `by_person`: its result is what a person said, and no attempt has confirmed it.
    """

    key: str
    trace_id: str
    flow: str
    stage: str
    name: str
    status: Status
    idempotent: bool
    slot: int
    fence: int
    note: str | None
    expired: bool
    by_person: bool


@dataclass(frozen=True, slots=True)
class Action:
    """What was decided about an effect, or came late. `was` and `was_note`: its row before."""

    key: str
    action: str
    actor: str
    reason: str
    was: str
    was_note: str | None
    fence: int
    result: Any
    at: datetime


def refusal(found: Found, answer: Happened[str] | DidNotHappen) -> str | None:
    """Why `found` cannot be resolved like this, as the end of a sentence; None if it can. Pure."""
    dead = found.status is Status.CLAIMED and found.expired and not found.idempotent
    corrected = found.by_person and isinstance(answer, Happened)
    if found.status is Status.IN_DOUBT or dead or corrected:
        return None
    if found.status is Status.RELEASED:
        return "is known not to have happened; the next run of its job calls it"
    if found.status is Status.DONE:
        return "is done and its result stored; nothing will call it again"
    if found.idempotent:
        return "is repeated under its key by the next run of its job, since it is idempotent"
    return f"is being called by slot {found.slot}; if that is dead, wait until its lease is over"


def resolve(
    conn: SyncConn, key: str, answer: Happened[str] | DidNotHappen, *, actor: str, reason: str
) -> Found:
    """Write what `actor` found out, and `reason`: how. The effect as it was before.

    `Happened.result` is JSON: what the effect's function would have returned. Raises `BadRecord`
    for an effect that is not known or not in doubt, and says what it is; `BadSetup` for a result
    that is no JSON and for a missing name or reason; `BadWorld`.
    """
    result = _checked_json(answer.result) if isinstance(answer, Happened) else None
    # A terminal may pass bytes that are no UTF-8.
    actor, reason = (text.encode("utf-8", "replace").decode().strip() for text in (actor, reason))
    if not reason or not actor:
        raise BadSetup("A resolution needs a reason and a name: who found out what, and how?")
    with conn.transaction():
        row = conn.execute(_SQL["hold_effect"], {"key": key}).fetchone()
        if row is None:
            raise BadRecord(f"The ledger has no effect {key}. See: handoff effects ls --in-doubt.")
        found = Found(**{**row, "status": Status(row["status"])})
        refused = refusal(found, answer)
        if refused is not None:
            raise BadRecord(f"Effect {key} is not in doubt: it {refused}.", key=key)
        happened = isinstance(answer, Happened)
        said = "happened" if happened else "did not happen"
        values = {
            "key": key,
            "status": Status.DONE if happened else Status.RELEASED,
            "action": "happened" if happened else "did_not_happen",
            "result": result,
            "actor": actor,
            "reason": reason,
            "note": f"resolved by {actor}: {said} ({reason})",
        }
        conn.execute(_SQL["resolve_effect"], values)
    return found


def _checked_json(text: str) -> str:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise BadSetup(
            f"The result is not JSON ({e}). Give what the effect's function would have returned, "
            'such as --result \'{"number": "T-1"}\'; text needs its quotes: --result \'"T-1"\'.'
        ) from e
    return text


def effect_actions(conn: SyncConn, key: str | None = None, *, limit: int = 100) -> list[Action]:
    """What was decided and what came late, the latest first; of one effect or of all."""
    rows = conn.execute(_SQL["effect_actions"], {"key": key, "limit": limit})
    return [Action(**row) for row in rows]


def happened_twice(conn: SyncConn) -> int:
    """How many effects are known to have happened more than once."""
    row = conn.execute(_SQL["happened_twice"]).fetchone()
    return int(row["effects"]) if row is not None else 0
