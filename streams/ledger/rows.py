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
from streams.crashpoints import reach
from streams.ledger.rules import Ask, Ending, Owner, Row, Status, Step, past_of, plan_claim
from streams.postgres import Conn, Pool, load_queries, pooled

_SQL: Final = load_queries("streams.ledger")


@dataclass(frozen=True, slots=True)
class Granted:
    """The claim is ours. `first`: no attempt before it is of unknown outcome.

    `asking`: not for a call, but to ask the target about the attempt that `past` describes.
    """

    fence: int
    first: bool
    asking: bool = False
    past: str = ""


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

_TAKES: Final = (Step.CLAIM_AFRESH, Step.TAKE_OVER, Step.RECONCILE)
#: Endings after which a row may hold another answer than this attempt's.
_DECIDED: Final = (Status.DONE, Status.IN_DOUBT)


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
            reach("ledger.asked")
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
        takes: dict[str, tuple[Ask, Row, Granted]] = {}
        for ask, row, step in plans:
            if step in _TAKES:
                past = past_of(row) if step is Step.RECONCILE else ""
                first, asking = step is Step.CLAIM_AFRESH, step is Step.RECONCILE
                takes[ask.key] = ask, row, Granted(row.fence + 1, first, asking, past)
        asks = [
            {
                **asdict(ask),
                "fence": row.fence,
                "status": row.status,
                "asking": granted.asking,
                "past_unknown": not granted.first,
                "note": granted.past or None,
            }
            for ask, row, granted in takes.values()
        ]
        taken = await self._keys(conn, "retake_claims", asks=asks) if asks else ()
        return {key: takes[key][2] for key in taken}

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
        """Write what attempts say; for each that is done, the result that counts.

        None for the others, unless one that wanted to be in doubt turns out to be done.
        """
        async with self._connection() as conn:
            written = set(await self._keys(conn, "end_attempts", told=endings))
            late = [e.key for e in endings if e.status in _DECIDED and e.key not in written]
            rows = await self._read(conn, late) if late else {}
        return [self._answer(e, e.key in written, rows.get(e.key)) for e in endings]

    @staticmethod
    def _answer(ending: Ending, written: bool, row: Row | None) -> Stored | Parked | None:
        if written:
            return Stored(ending.result or "null") if ending.status is Status.DONE else None
        same = row is not None and row.fingerprint == ending.fingerprint
        if ending.status is not Status.DONE:
            settled = same and row is not None and row.status is Status.DONE
            return Stored(row.result or "null") if settled and row is not None else None
        if row is None or not same:
            return Parked("in_doubt" if row is None else "fingerprint_mismatch", row)
        return Stored(row.result or "null")

    async def renew(self, fences: dict[str, int]) -> None:
        """Give the live claims of this process a whole lease again, in one statement."""
        async with self._connection() as conn:
            live = [{"key": k, "fence": f, "recalled": False} for k, f in fences.items()]
            await self._keys(conn, "renew_leases", live=live)

    async def confirm(self, key: str, fence: int, *, recalled: bool = False) -> bool:
        """A whole lease again, if the claim is still ours; False if it is not.

        `recalled`: the target said that nothing has happened, and a call follows.
        """
        async with self._connection() as conn:
            live = [{"key": key, "fence": fence, "recalled": recalled}]
            return bool(await self._keys(conn, "renew_leases", live=live))

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
        return {"status": Status.IN_DOUBT, "note": past_of(row)}
    return {"status": None, "note": "asked for again with other arguments"}
