"""The dispatcher: rows of `timers` that are due go back to their topics, at least once.

What comes back is a suspect that claims its step, so a record that was written twice is skipped
once. Failure table: infra/decisions/0007-retries-timers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from streams.config import Settings
from streams.crashpoints import reach
from streams.errors import BadWorld
from streams.postgres import Conn, Pool, load_queries, pooled
from streams.timers.record import unpack
from streams.timers.sender import Return, Sender, Sent

_SQL: Final = load_queries("streams.timers")
_log = structlog.get_logger(__name__)

#: One flush each. 10,000 timers that are due at once are five batches.
MAX_ROWS: Final = 2_000
_MAX_BYTES: Final = 32 * 2**20
#: A timer that is stored late, or by another process, is seen after at most so long.
_TICK_S: Final = 0.25
#: When another dispatcher holds all that is due.
_YIELD_S: Final = 0.02
_PAUSE_S: Final = 1.0
#: Until a timer that Kafka refused is tried again.
_REFUSED_WAIT_S: Final = 60.0
#: For the flush, on top of what the statements may take.
_FLUSH_ROOM_S: Final = 40.0


class Dispatcher:
    """Returns what is due by Postgres' clock. Any number may run at once, in any processes.

    After a crash at any instruction a timer is in its topic, or still a row, or both.
    """

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings
        self._sender = Sender(settings)
        self._told = asyncio.Event()
        #: Why nothing is returned now, None while all is well.
        self.paused: str | None = None

    async def run(self) -> None:
        """Until `stop`. A bad world is waited out; any other error is raised."""
        try:
            while not self._told.is_set():
                try:
                    wait_s = await self._round()
                    self.paused = None
                except BadWorld as e:
                    self.paused = e.message
                    _log.warning("timers_paused", why=e.message)
                    wait_s = _PAUSE_S
                await self._sleep(wait_s)
        finally:
            await asyncio.to_thread(self._sender.close)

    def stop(self) -> None:
        """The batch under way is finished, then `run` returns."""
        self._told.set()

    async def _sleep(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._told.wait(), wait_s)

    async def _round(self) -> float:
        """Return what is due; how long to sleep then."""
        due_in_s = await self.next_due()
        if due_in_s is None or due_in_s > 0:
            return _TICK_S if due_in_s is None else min(due_in_s, _TICK_S)
        return 0.0 if await self.dispatch() else _YIELD_S

    async def next_due(self) -> float | None:
        """Seconds until the first timer is due, 0 or less when it was; None when none is pending.

        Raises `BadWorld`.
        """
        deadline_s = 2 * self._settings.database_timeout_s
        async with pooled(self._pool, self._settings, deadline_s=deadline_s) as conn:
            row = await (await conn.execute(_SQL["next_due"])).fetchone()
        return None if row is None else float(row["wait_s"])

    async def dispatch(self) -> int:
        """Return one batch of what is due; how many records Kafka acknowledged.

        A record that Kafka refuses stays a row, is said in the log and tried again a minute later.
        Raises `BadWorld` when Kafka does not confirm the rest, or when Postgres fails: what was not
        deleted is returned again.
        """
        deadline_s = 4 * self._settings.database_timeout_s + _FLUSH_ROOM_S
        async with (
            pooled(self._pool, self._settings, deadline_s=deadline_s) as conn,
            conn.transaction(),
        ):
            # 1 Take: the rows are locked.
            limits = {"max_rows": MAX_ROWS, "max_bytes": _MAX_BYTES}
            rows = await (await conn.execute(_SQL["take_due"], limits)).fetchall()
            if not rows:
                return 0
            reach("timers.taken")
            # 2 Write, and wait for the acknowledgements.
            sent = await asyncio.to_thread(self._sender.send, [_record(row) for row in rows])
            reach("timers.dispatched")
            # 3 Delete what is certain.
            await self._settle(conn, rows, sent)
            reach("timers.deleted")
            # 4 Commit, by leaving the transaction.
        if sent.failed is not None:
            raise BadWorld(f"Kafka did not take all timers that are due: {sent.failed}.")
        return len(sent.acknowledged)

    async def _settle(self, conn: Conn, rows: Sequence[dict[str, Any]], sent: Sent) -> None:
        places = [rows[n]["place"] for n in sent.acknowledged]
        if places:
            await conn.execute(_SQL["delete_returned"], {"places": places})
        for n, reason in sent.refused.items():
            row = rows[n]
            _log.error(
                "timer_refused",
                job=row["trace_id"],
                why=reason,
                again_in_s=_REFUSED_WAIT_S,
            )
            await conn.execute(
                _SQL["postpone"],
                {"place": row["place"], "reason": reason, "wait_s": _REFUSED_WAIT_S},
            )


def _record(row: dict[str, Any]) -> Return:
    return Return(
        row["return_topic"], row["trace_id"].encode(), row["value"], unpack(row["headers"])
    )
