"""The rows of limits in memory, with the real decisions: what stages of a test may share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from streams.errors import BadWorld
from streams.limits import Limit
from streams.limits.limit import Claim
from streams.limits.rows import Answer, Question
from streams.limits.schedule import Row, decide

#: Its clock has nothing to do with that of the process.
_EPOCH_US = 1_700_000_000_000_000


class Book:
    """`away`: it does not serve. `delay_s`: how long an answer takes on its way back. `set_us`: by
    how much its clock was set."""

    def __init__(self, limits: Iterable[Limit]) -> None:
        self._limits = {limit.name: limit for limit in limits}
        self._rows: dict[Claim, Row] = {}
        self._held: dict[int, Counter[Claim]] = {}
        self.away = False
        self.delay_s = 0.0
        self.set_us = 0
        self.questions = 0

    def holder(self) -> Callable[[Question], Awaitable[Answer]]:
        """`ask` of one more stage."""
        number = len(self._held)
        self._held[number] = Counter()

        async def ask(question: Question) -> Answer:
            await asyncio.sleep(0)
            self.questions += 1
            if self.away:
                raise BadWorld("Postgres at nowhere does not serve.")
            answer = self._decide(number, question)
            await asyncio.sleep(self.delay_s)
            return answer

        return ask

    def _decide(self, number: int, question: Question) -> Answer:
        self._held[number] = Counter(question.held)
        total: Counter[Claim] = Counter()
        for held in self._held.values():
            total.update(held)
        rows = {claim: self._row(claim, total) for ask in question.asks for claim in ask.claims}
        mine = time.monotonic_ns() // 1_000
        now = mine + _EPOCH_US + self.set_us
        given = decide(rows, question.asks, question.room, now, question.lead_us)
        for ask, each in zip(question.asks, given, strict=True):
            for claim in ask.claims:
                if self._limits[claim[0]].concurrency is not None:
                    self._held[number][claim] += len(each.starts)
        return Answer(given, mine, mine, now)

    def _row(self, claim: Claim, total: Counter[Claim]) -> Row:
        limit = self._limits[claim[0]]
        row = self._rows.setdefault(claim, Row(limit.spacing_us, None, limit.spacing_us or 1_000))
        row.free = None if limit.concurrency is None else limit.concurrency - total[claim]
        return row
