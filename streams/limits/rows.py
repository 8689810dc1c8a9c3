"""The rows of limits in Postgres: what a stage in a process asks of them, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streams.config import Settings
from streams.limits.limit import Claim, Limit
from streams.limits.schedule import Ask, Given, Row, decide
from streams.postgres import Conn, Pool, load_queries, pooled

_SQL: Final = {name: text.encode() for name, text in load_queries("streams.limits").items()}

#: Places of a process that does not renew them are free after so long; it renews them six times as
#: often.
LEASE_S: Final = 30.0
#: Keys whose rows are known to be there; a row that is made twice does no harm.
_MADE_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Question:
    """What a stage wants, and `held`: how many it runs, or has moments for, by claim of a limit of
    concurrency. `run_us`: how long a run of its handler takes, about."""

    asks: Sequence[Ask]
    room: int
    lead_us: int
    run_us: int
    held: Mapping[Claim, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """`given` by ask. Postgres' clock said `server_us` at some moment between `sent_us` and
    `came_us` of this process's (`time.monotonic`)."""

    given: Sequence[Given]
    sent_us: int = 0
    came_us: int = 0
    server_us: int = 0


class LimitRows:
    """Of one stage in one process, whose name `holder` is."""

    def __init__(
        self, pool: Pool, settings: Settings, limits: Collection[Limit], holder: str
    ) -> None:
        self._pool, self._settings, self._holder = pool, settings, holder
        self._limits = {limit.name: limit for limit in limits}
        self._places = any(limit.concurrency is not None for limit in limits)
        self._made: set[Claim] = set()

    async def ask(self, question: Question) -> Answer:
        """Take moments and places, and say what is held.

        Moments that are never used, because the answer was lost or the process died, are wasted;
        what is held is told anew each time. Raises `BadWorld` when Postgres fails.
        """
        claims = sorted({claim for ask in question.asks for claim in ask.claims})
        deadline_s = 2 * self._settings.database_timeout_s
        async with pooled(self._pool, self._settings, deadline_s=deadline_s) as conn:
            while True:
                await self._make(conn, claims)
                async with conn.transaction():
                    answer = await self._decide(conn, question, claims)
                if answer is not None:
                    return answer

    async def _make(self, conn: Conn, claims: Sequence[Claim]) -> None:
        new = [claim for claim in claims if claim not in self._made]
        if new:
            await conn.execute(_SQL["make"], _columns(new))
            if len(self._made) > _MADE_MOST:
                self._made.clear()
            self._made.update(new)

    async def _decide(
        self, conn: Conn, question: Question, claims: Sequence[Claim]
    ) -> Answer | None:
        """None, and nothing done, when a row is missing that had been made."""
        if not claims:
            await self._hold(conn, question.held, [], [])
            return Answer([])
        sent_us = _now_us()
        found = await (await conn.execute(_SQL["lock"], _columns(claims))).fetchall()
        came_us = _now_us()
        if len(found) < len(claims):
            # It was idle for long, and somebody has removed it.
            self._made.clear()
            return None
        others = await self._others(conn, claims)
        rows = {}
        for each in found:
            claim = each["name"], each["key"]
            held = others.get(claim, 0) + question.held.get(claim, 0)
            rows[claim] = self._row(claim, each, held, question.run_us)
        # The last lock was had last.
        now_us = max(each["now_us"] for each in found)
        given = decide(rows, question.asks, question.room, now_us, question.lead_us)
        await conn.execute(_SQL["keep"], _kept(rows, now_us))
        await self._hold(conn, question.held, question.asks, given)
        return Answer(given, sent_us, came_us, now_us)

    def _row(self, claim: Claim, found: Mapping[str, Any], held: int, run_us: int) -> Row:
        limit = self._limits[claim[0]]
        places = limit.concurrency
        pace_us = limit.spacing_us or 0
        if places is not None:
            pace_us = max(pace_us, run_us // places)
        free = None if places is None else places - held
        return Row(
            limit.spacing_us,
            free,
            pace_us,
            sorted(found["booked"]),
            found["parked_us"],
            found["closed_until_us"],
        )

    async def _others(self, conn: Conn, claims: Sequence[Claim]) -> dict[Claim, int]:
        if not self._places:
            return {}
        values = {**_columns(claims), "holder": self._holder}
        rows = await (await conn.execute(_SQL["others"], values)).fetchall()
        return {(row["name"], row["key"]): row["held"] for row in rows}

    async def _hold(
        self, conn: Conn, held: Mapping[Claim, int], asks: Sequence[Ask], given: Sequence[Given]
    ) -> None:
        """Write down what is held, with what is now given."""
        if not self._places:
            return
        total = dict(held)
        for ask, each in zip(asks, given, strict=True):
            for claim in ask.claims:
                if self._limits[claim[0]].concurrency is not None:
                    total[claim] = total.get(claim, 0) + len(each.starts)
        values = {"held": list(total.values()), "holder": self._holder, "lease_s": LEASE_S}
        await conn.execute(_SQL["hold"], {**_columns(list(total)), **values})

    async def leave(self) -> None:
        """Give all places back. Raises `BadWorld`: they are free when their lease ends."""
        if self._places:
            await self._do("leave", {"holder": self._holder})

    async def forget(self) -> None:
        """Remove rows that say nothing any more. Raises `BadWorld`."""
        await self._do("forget", {})

    async def _do(self, name: str, values: Mapping[str, Any]) -> None:
        deadline_s = 2 * self._settings.database_timeout_s
        async with pooled(self._pool, self._settings, deadline_s=deadline_s) as conn:
            await conn.execute(_SQL[name], values)


def _columns(claims: Sequence[Claim]) -> dict[str, Any]:
    return {"names": [name for name, _ in claims], "keys": [key for _, key in claims]}


def _kept(rows: Mapping[Claim, Row], now_us: int) -> dict[str, Any]:
    kept = list(rows.values())
    return {
        **_columns(list(rows)),
        "booked": ["{" + ",".join(map(str, row.booked)) + "}" for row in kept],
        "parked_us": [row.parked_us for row in kept],
        "closed_until_us": [row.closed_until_us for row in kept],
        "idle_us": [row.idle_at(now_us) for row in kept],
    }


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
