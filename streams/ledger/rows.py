"""The rows of the ledger: claims, endings and leases, each in batches of one round trip.

Every method raises `BadWorld` when Postgres does not serve; what it was to write is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from streams.config import Settings
from streams.ledger.rules import Ask, Ending, Owner, Row, Status, Step, plan_claim
from streams.postgres import Conn, Pool, load_queries, pooled

_SQL: Final = load_queries("streams.ledger")


@dataclass(frozen=True, slots=True)
class Granted:
    """The claim is ours. `first`: no attempt before it is of unknown outcome."""

    fence: int
    first: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """The effect is done; `result` is its JSON."""

    result: str


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else is at it: ask again later."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A person must look. `row` is what was found, None if it is gone."""

    kind: str
    row: Row | None


Claim = Granted | Stored | Held | Parked


class Rows:
    """Table `effects` as one process sees it. All waits have a deadline."""

    def __init__(self, pool: Pool, settings: Settings, me: Owner) -> None:
        self._pool = pool
        self._settings = settings
        self._me = me
        # The server's own time-outs come first; this one is for a server that has stopped.
        self._deadline_s = 2 * settings.database_timeout_s

    async def claim(self, asks: Sequence[Ask]) -> list[Claim]:
        """Claim each key or say why not. Keys differ; one round trip if none was known before."""
        async with self._connection() as conn:
            new = await self._keys(conn, "insert_claims", asks=asks)
            claims: dict[str, Claim] = dict.fromkeys(new, Granted(fence=1, first=True))
            known = [a for a in asks if a.key not in claims]
            if known:
                claims |= await self._claim_known(conn, known)
        return [claims.get(a.key, Held()) for a in asks]

    async def _claim_known(self, conn: Conn, asks: list[Ask]) -> dict[str, Claim]:
        rows = await self._read(conn, [a.key for a in asks])
        plans = [
            (a, rows[a.key], plan_claim(rows[a.key], a, self._me)) for a in asks if a.key in rows
        ]
        claims: dict[str, Claim] = {}
        for ask, row, step in plans:
            if step is Step.ANSWER:
                claims[ask.key] = Stored(row.result or "null")
            elif step is Step.PARK:
                claims[ask.key] = Parked("in_doubt", row)
        claims |= await self._retake(conn, plans)
        claims |= await self._note(conn, plans)
        return claims

    async def _retake(self, conn: Conn, plans: list[tuple[Ask, Row, Step]]) -> dict[str, Claim]:
        takes = {
            ask.key: (ask, row, step)
            for ask, row, step in plans
            if step in (Step.CLAIM_AFRESH, Step.TAKE_OVER)
        }
        asks = [
            {**asdict(ask), "fence": row.fence, "status": row.status}
            for ask, row, _ in takes.values()
        ]
        taken = await self._keys(conn, "retake_claims", asks=asks) if asks else ()
        return {
            key: Granted(takes[key][1].fence + 1, first=takes[key][2] is Step.CLAIM_AFRESH)
            for key in taken
        }

    async def _note(self, conn: Conn, plans: list[tuple[Ask, Row, Step]]) -> dict[str, Claim]:
        found = {
            ask.key: (row, step) for ask, row, step in plans if step in (Step.DOUBT, Step.MISMATCH)
        }
        told = [
            {"key": key, "fence": row.fence, **_verdict(step, row)}
            for key, (row, step) in found.items()
        ]
        noted = await self._keys(conn, "note_effects", told=told) if told else ()
        kinds = {Step.DOUBT: "in_doubt", Step.MISMATCH: "fingerprint_mismatch"}
        return {key: Parked(kinds[found[key][1]], found[key][0]) for key in noted}

    async def end(self, endings: Sequence[Ending]) -> list[Stored | Parked | None]:
        """Write what attempts say; for each that is done, the result that counts."""
        async with self._connection() as conn:
            written = set(await self._keys(conn, "end_attempts", told=endings))
            late = [e.key for e in endings if e.status is Status.DONE and e.key not in written]
            rows = await self._read(conn, late) if late else {}
        return [self._answer(e, e.key in written, rows.get(e.key)) for e in endings]

    @staticmethod
    def _answer(ending: Ending, written: bool, row: Row | None) -> Stored | Parked | None:
        if ending.status is not Status.DONE:
            return None
        if written:
            return Stored(ending.result or "null")
        if row is None or row.fingerprint != ending.fingerprint:
            return Parked("in_doubt" if row is None else "fingerprint_mismatch", row)
        return Stored(row.result or "null")

    async def renew(self, fences: dict[str, int]) -> None:
        """Give the live claims of this process a whole lease again, in one statement."""
        async with self._connection() as conn:
            live = [{"key": k, "fence": f} for k, f in fences.items()]
            await self._keys(conn, "renew_leases", live=live)

    def _connection(self) -> AbstractAsyncContextManager[Conn]:
        return pooled(self._pool, self._settings, deadline_s=self._deadline_s)

    async def _keys(self, conn: Conn, name: str, **batch: Sequence[Any]) -> list[str]:
        values = {
            "slot": self._me.slot,
            "incarnation": self._me.incarnation,
            "lease_s": self._settings.effect_lease_s,
            **{k: orjson.dumps(v).decode() for k, v in batch.items()},
        }
        cursor = await conn.execute(_SQL[name].encode(), values, prepare=True)
        return [row["key"] for row in await cursor.fetchall()]

    async def _read(self, conn: Conn, keys: Iterable[str]) -> dict[str, Row]:
        values = {"keys": orjson.dumps(list(keys)).decode()}
        cursor = await conn.execute(_SQL["read_effects"].encode(), values, prepare=True)
        rows = await cursor.fetchall()
        return {r["key"]: Row(**{**r, "status": Status(r["status"])}) for r in rows}


def _verdict(step: Step, row: Row) -> dict[str, str | None]:
    if step is Step.DOUBT:
        why = f"attempt {row.fence} of slot {row.slot} ended without an answer"
        return {"status": Status.IN_DOUBT, "note": why}
    return {"status": None, "note": "asked for again with other arguments"}
