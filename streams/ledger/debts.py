"""Endings that Postgres has not confirmed: kept in memory and told again, never forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streams.ledger.batch import Batcher
from streams.ledger.rows import Parked, Rows, Stored
from streams.ledger.rules import Ending

_MAX_BATCH: Final = 1_000

Reply = Stored | Parked | None


@dataclass(slots=True)
class _Debt:
    ending: Ending
    #: The write that is under way, or has failed.
    write: asyncio.Future[Reply] | None = None


class Debts:
    """What this process knows and the ledger does not, at most one ending per key.

    While a key is here, nothing else may be done about it: a new claim could be ended by an old
    word. A crash loses the debts; their effects are then found as claims of a dead attempt.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._debts: dict[str, _Debt] = {}
        self._batches: Batcher[Ending, Reply] = Batcher(self._end, _MAX_BATCH)

    def __contains__(self, key: str) -> bool:
        return key in self._debts

    def owe(self, ending: Ending) -> None:
        """Keep an ending and leave its writing to `pay`: Postgres has just failed."""
        self._debts[ending.key] = _Debt(ending)

    def tell(self, ending: Ending) -> asyncio.Future[Reply]:
        """Keep an ending and write it. Need not be awaited; if so, through `asyncio.shield`."""
        self.owe(ending)
        return self.pay(ending.key)

    def pay(self, key: str) -> asyncio.Future[Reply]:
        """The write of a kept ending: the one that is under way, or a new one."""
        debt = self._debts[key]
        if debt.write is None or debt.write.done():
            debt.write = self._batches.submit(debt.ending)
        return debt.write

    def pay_all(self) -> None:
        for key in self._debts:
            self.pay(key)

    async def drain(self) -> None:
        """Return when every write under way has succeeded or failed."""
        await self._batches.drain()

    async def _end(self, endings: Sequence[Ending]) -> list[Reply]:
        replies = await self._rows.end(endings)
        for ending in endings:
            self._debts.pop(ending.key, None)
        return replies
