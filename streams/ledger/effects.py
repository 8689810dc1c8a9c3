"""The ledger: an effect is claimed, called with its idempotency key, settled with its result."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass
from typing import Any, Final

import structlog

from streams.config import Settings
from streams.context import EffectCall
from streams.errors import BadWorld
from streams.ledger.batch import Batcher
from streams.ledger.calls import Calls
from streams.ledger.debts import Debts
from streams.ledger.parked import parked_by_row
from streams.ledger.rows import Claim, Granted, Parked, Rows, Stored
from streams.ledger.rules import Ask, Ending, Owner, Status
from streams.ledger.values import Answer, answer_of, fingerprint
from streams.postgres import Pool

_log = structlog.get_logger(__name__)

_MAX_BATCH: Final = 1_000
#: Polling of a claim that a live worker holds: grows from the first to the last.
_FIRST_POLL_S: Final = 0.05
_LAST_POLL_S: Final = 0.5
#: How often leases, and endings that could not be written, are looked after.
_TICK_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Attempt:
    """What this process is doing about one key; there is at most one."""

    ended: asyncio.Future[None]
    #: Set while the function runs: what to renew, and when (the loop's time).
    fence: int | None = None
    renew_at: float = 0.0
    #: When the last claim was asked for (the loop's time): its lease is not older.
    asked_at: float = 0.0
    #: Gives back a claim whose waiter was cancelled before the answer came.
    undo: asyncio.Task[None] | None = None


class Ledger:
    """Runs effects once per key (an `EffectRunner`), for all stages of one process.

    `await open()` first, `await close()` after the last handler; the pool is the caller's.
    One process per slot and stage: a claim of the own slot by another incarnation counts as dead.
    """

    def __init__(self, pool: Pool, settings: Settings, incarnation: str | None = None) -> None:
        self._me = Owner(settings.slot, incarnation or uuid.uuid4().hex[:12])
        self._lease_s = settings.effect_lease_s
        self._rows = Rows(pool, settings, self._me)
        self._claims: Batcher[Ask, Claim] = Batcher(self._rows.claim, _MAX_BATCH)
        self._debts = Debts(self._rows)
        self._calls = Calls(self._rows, self._debts)
        self._attempts: dict[str, _Attempt] = {}
        self._ticker: asyncio.Task[None] | None = None

    @property
    def incarnation(self) -> str:
        return self._me.incarnation

    async def open(self) -> None:
        """Start to renew leases."""
        self._ticker = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Write the endings of cancelled calls; what cannot be written is found in doubt later."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
            self._ticker = None
        undos = [a.undo for a in self._attempts.values() if a.undo is not None]
        if undos:
            await asyncio.wait(undos)
        self._debts.pay_all()
        await self._debts.drain()

    async def run(self, call: EffectCall) -> Any:
        """The effect's result as JSON keeps it: the first run and every later one get equal values.

        Raises `EffectParked` (a person must look; `kind` says why), `BadWorld` (Postgres; nothing
        is lost, run again), `BadRecord` or `BadSetup` (not called: its arguments, or the function,
        are of no use), or what the function raised. After a crash at any instruction the function
        is called again only if it is known not to have been, if the effect is idempotent, or if its
        target says that it did not happen.
        """
        answer = answer_of(call)
        ask = ask_of(call)
        # 1 One attempt per key in this process.
        attempt = await self._begin(call.key)
        try:
            claim: Granted | Stored | Parked | None = None
            while not isinstance(claim, Stored):
                # 2 Claim, or find the answer.
                claim = await self._claim(ask, attempt)
                if isinstance(claim, Parked):
                    raise parked_by_row(call, claim)
                if isinstance(claim, Granted):
                    # 3 Call, or ask the target first, and 4 settle. None: fenced before the call.
                    claim = await self._run(call, ask, claim, answer, attempt)
        finally:
            attempt.fence = None
            if attempt.undo is None:
                self._finish(call.key, attempt)
        return answer.read(claim.result, call)

    async def _run(
        self, call: EffectCall, ask: Ask, claim: Granted, answer: Answer, attempt: _Attempt
    ) -> Stored | None:
        now = asyncio.get_running_loop().time()
        attempt.renew_at = now + self._lease_s / 3
        attempt.fence = claim.fence
        # This process was stopped, or its loop blocked, since it asked: not much of the lease is
        # left, or nothing.
        stale = now - attempt.asked_at > self._lease_s / 2
        return await self._calls.run(call, ask, claim, answer, stale=stale)

    # 1 One attempt per key in this process.

    async def _begin(self, key: str) -> _Attempt:
        while True:
            if key in self._attempts:
                await asyncio.wait([self._attempts[key].ended])
            elif key in self._debts:
                await asyncio.shield(self._debts.pay(key))
            else:
                attempt = _Attempt(asyncio.get_running_loop().create_future())
                self._attempts[key] = attempt
                return attempt

    def _finish(self, key: str, attempt: _Attempt) -> None:
        del self._attempts[key]
        attempt.ended.set_result(None)

    # 2 Claim.

    async def _claim(self, ask: Ask, attempt: _Attempt) -> Granted | Stored | Parked:
        """The answer of the ledger, after any live attempt of another worker has ended."""
        poll_s = _FIRST_POLL_S
        while True:
            attempt.fence = None
            attempt.asked_at = asyncio.get_running_loop().time()
            asked = self._claims.submit(ask)
            try:
                claim = await asyncio.shield(asked)
            except asyncio.CancelledError:
                attempt.undo = asyncio.create_task(self._undo(ask, attempt, asked))
                raise
            except Exception:
                self._debts.owe(_never_called(ask, None))
                raise
            if isinstance(claim, Granted | Stored | Parked):
                return claim
            await asyncio.sleep(poll_s * random.uniform(0.8, 1.2))  # noqa: S311 - spreads polls
            poll_s = min(2 * poll_s, _LAST_POLL_S)

    async def _undo(self, ask: Ask, attempt: _Attempt, asked: asyncio.Future[Claim]) -> None:
        try:
            claim = await asked
            if isinstance(claim, Granted):
                self._debts.tell(_never_called(ask, claim))
        except Exception:
            self._debts.owe(_never_called(ask, None))
        finally:
            self._finish(ask.key, attempt)

    # Beside the calls.

    async def _tick(self) -> None:
        """Renew long calls' leases in one statement, and tell again what failed to be told."""
        while True:
            await asyncio.sleep(min(_TICK_S, self._lease_s / 6))
            self._debts.pay_all()
            now = asyncio.get_running_loop().time()
            due = {
                key: a
                for key, a in self._attempts.items()
                if a.fence is not None and a.renew_at <= now
            }
            if not due:
                continue
            try:
                await self._rows.renew({k: a.fence for k, a in due.items() if a.fence is not None})
            except BadWorld as e:
                # Tried again at the next tick. If the lease runs out meanwhile, another worker may
                # find the effect in doubt; our answer is then accepted late.
                _log.warning("effect leases not renewed", effects=len(due), reason=e.message)
            else:
                for each in due.values():
                    each.renew_at = now + self._lease_s / 3


def ask_of(call: EffectCall) -> Ask:
    """The claim that a call needs. Raises `BadRecord` for arguments without a fingerprint."""
    return Ask(
        key=call.key,
        name=call.name,
        trace_id=call.trace_id,
        flow=call.flow,
        stage=call.stage,
        fingerprint=fingerprint(call),
        idempotent=call.idempotent,
        reconcilable=call.reconcile is not None,
    )


def _never_called(ask: Ask, claim: Granted | None) -> Ending:
    """A claim is given back; None: whether there is one is unknown."""
    first = claim is None or claim.first
    return Ending(
        ask.key,
        ask.fingerprint,
        Status.RELEASED if first else Status.CLAIMED,
        claim.fence if claim is not None else None,
        note="claimed and not called",
    )
