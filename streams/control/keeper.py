"""What is ordered is seen through, and forgotten when it is.

In the projector's worker, once a minute: a job that came to wait after the command had looked is
woken; an order that nothing can meet any more is taken back (a tombstone), so that what workers
read and keep does not grow. An order goes once the job and all that it forked have been over for an
hour; one for a job that nobody ever heard of goes when no record of it can be left in any topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from streams.config import Settings
from streams.control.cancel import SQL, waiting_of
from streams.control.order import Order
from streams.control.sender import Outgoing, send
from streams.control.standing import Standing
from streams.control.wakes import wake
from streams.errors import HandoffError
from streams.ledger.prune import horizon
from streams.postgres import Pool, pooled

_log = structlog.get_logger(__name__)

_EVERY_S: Final = 60.0
_SLICE: Final = 1_000
#: Longer than a projection is behind in good health.
QUIET: Final = timedelta(hours=1)


class ControlKeeper:
    """Runs for as long as a worker does; the pool and the standing orders are the caller's."""

    def __init__(self, pool: Pool, settings: Settings, standing: Standing) -> None:
        self._pool, self._settings, self._standing = pool, settings, standing
        self._woken: set[tuple[str, int]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.tend()
            except HandoffError as e:
                _log.warning("orders_not_tended", why=e.message)
            except Exception as e:
                # A fault of ours must not end a worker that has other things to do.
                _log.error("orders_not_tended", why=repr(e))

    async def tend(self, quiet: timedelta = QUIET) -> None:
        """Look at all orders once. Raises `BadWorld`; what was done until then stays done."""
        orders = list(self._standing.cancelled.values())
        self._woken = {x for x in self._woken if x[0] in self._standing.cancelled or "/" in x[0]}
        for n in range(0, len(orders), _SLICE):
            await self._tend(orders[n : n + _SLICE], quiet)

    async def _tend(self, orders: Sequence[Order], quiet: timedelta) -> None:
        ids = [order.target for order in orders]
        before = horizon(self._settings, datetime.now(UTC))
        values = {"ids": ids, "ats": [o.at for o in orders], "quiet": quiet, "before": before}
        settled = {row["id"] for row in await self._rows("settled", values)}
        topic = self._settings.names.control_topic
        out = [Outgoing(topic, o.key, None, []) for o in orders if o.target in settled]
        by_id = {order.target: order for order in orders}
        woken = []
        for row in await self._rows("waiting", {"ids": [x for x in ids if x not in settled]}):
            each = waiting_of(row)
            if (each.job, each.seq) not in self._woken:
                woken.append((each.job, each.seq))
                out.append(wake(each, by_id[each.ordered], self._settings.names))
        await asyncio.to_thread(send, self._settings, out)
        self._woken.update(woken)
        if out:
            _log.info("orders_tended", taken_back=len(settled), woken=len(woken))

    async def _rows(self, query: str, values: dict[str, Any]) -> Sequence[Any]:
        deadline_s = 2 * self._settings.database_timeout_s
        async with pooled(self._pool, self._settings, deadline_s=deadline_s) as conn:
            return await (await conn.execute(SQL[query].encode(), values)).fetchall()
