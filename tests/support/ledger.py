"""Ledgers of several workers against a target that honours no keys, and what tests ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from streams.config import Settings
from streams.context import DidNotHappen, EffectCall, Happened
from streams.errors import EffectParked
from streams.ledger.effects import Ledger, ask_of
from streams.ledger.rows import Granted
from streams.postgres import open_pool

JOB = "ce" * 16
KEY = f"{JOB}:act:0:mail"


class PostOffice:
    """A target that keeps a log by key, but takes whatever it is given: it honours no keys."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.questions = 0
        #: Raised by the next calls, before and after they count.
        self.call_errors: list[BaseException] = []
        self.lost_answers: list[BaseException] = []
        #: Answered, or raised, by the next questions instead of what the log says.
        self.answers: list[Any] = []
        #: Closed: the call or the question stays in the middle.
        self.call_gate, self.question_gate = asyncio.Event(), asyncio.Event()
        self.call_gate.set()
        self.question_gate.set()
        self.called, self.asked = asyncio.Event(), asyncio.Event()

    async def send(self, subject: str, *, idempotency_key: str) -> int:
        if self.call_errors:
            raise self.call_errors.pop(0)
        self.called.set()
        await self.call_gate.wait()
        self.log.append((idempotency_key, subject))
        if self.lost_answers:
            raise self.lost_answers.pop(0)
        return len(self.log)

    async def look(self, subject: str, *, idempotency_key: str) -> Any:
        self.questions += 1
        self.asked.set()
        await self.question_gate.wait()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        for n, entry in enumerate(self.log, 1):
            if entry == (idempotency_key, subject):
                return Happened(n)
        return DidNotHappen()


def effect(
    post: PostOffice,
    *,
    idempotent: bool = False,
    ask: bool = True,
    key: str = KEY,
    subject: str = "hello",
) -> EffectCall:
    """The mail of a job; `ask`: with a reconcile function."""
    trace_id, stage, _, name = key.split(":")
    look = post.look if ask else None
    return EffectCall(
        key, name, trace_id, "mail", stage, post.send, (subject,), {}, idempotent, look
    )


def sql(settings: Settings, query: str, *args: object) -> list[DictRow]:
    with psycopg.connect(settings.database_url, autocommit=True, row_factory=dict_row) as conn:
        cursor = conn.execute(query.encode(), args)
        return cursor.fetchall() if cursor.description else []


def row(settings: Settings, key: str = KEY) -> DictRow:
    """The row of an effect; `over`: its lease is."""
    query = "SELECT *, leased_until <= now() AS over FROM effects WHERE key = %s"
    return sql(settings, query, key)[0]


def actions(settings: Settings) -> list[str]:
    return [r["action"] for r in sql(settings, "SELECT action FROM effect_actions ORDER BY id")]


def expire(settings: Settings) -> None:
    """All leases are over."""
    sql(settings, "UPDATE effects SET leased_until = now() - interval '1 s'")


async def die_in_call(ledger: Ledger, call: EffectCall) -> None:
    """Leave a claim as a killed process does: made, and never spoken of again."""
    [claim] = await ledger._rows.claim([ask_of(call)])
    assert isinstance(claim, Granted)


Worker = Callable[..., Awaitable[Ledger]]


async def doubt(worker: Worker, settings: Settings, post: PostOffice) -> None:
    """An effect in doubt, its first attempt dead in slot 1."""
    await die_in_call(await worker(slot=1), effect(post, ask=False))
    expire(settings)
    with pytest.raises(EffectParked):
        await (await worker()).run(effect(post, ask=False))
    assert row(settings)["status"] == "in_doubt"


async def slow_doubt(worker: Worker, settings: Settings, post: PostOffice) -> asyncio.Task[object]:
    """An effect in doubt whose first attempt is alive after all; it goes on when the gate opens."""
    post.call_gate.clear()
    slow = asyncio.create_task((await worker(slot=1)).run(effect(post, ask=False)))
    await post.called.wait()
    expire(settings)
    with pytest.raises(EffectParked):
        await (await worker()).run(effect(post, ask=False))
    return slow


@asynccontextmanager
async def workers(settings: Settings) -> AsyncIterator[Worker]:
    """Starts the ledger of another worker process each time: `await worker(slot=1)`."""
    opened: list[tuple[Ledger, Any]] = []

    async def start(slot: int = 0, **changes: Any) -> Ledger:
        own = settings.model_copy(update={"slot": slot, **changes})
        pool = open_pool(own)
        await pool.open()
        ledger = Ledger(pool, own)
        await ledger.open()
        opened.append((ledger, pool))
        return ledger

    yield start
    for ledger, pool in opened:
        await ledger.close()
        await pool.close()
