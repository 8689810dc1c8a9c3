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
from streams.ledger.debts import Debts
from streams.ledger.parked import parked_by_error, parked_by_result, parked_by_row
from streams.ledger.rows import Claim, Granted, Parked, Rows, Stored
from streams.ledger.rules import Ask, Ending, Owner, Status, plan_failure
from streams.ledger.values import Answer, answer_of, fingerprint
from streams.postgres import Pool

_log = structlog.get_logger(__name__)

_MAX_BATCH: Final = 1_000
#: Polling of a claim that a live worker holds: grows from the first to the last.
_FIRST_POLL_S: Final = 0.05
_LAST_POLL_S: Final = 0.5
#: How often leases, and endings that could not be written, are looked after.
_TICK_S: Final = 1.0
_NOTE_CHARS: Final = 200


@dataclass(slots=True, eq=False)
class _Attempt:
    """What this process is doing about one key; there is at most one."""

    ended: asyncio.Future[None]
    #: Set while the function runs: what to renew, and when (the loop's time).
    fence: int | None = None
    renew_at: float = 0.0
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
        is called again only if it is known not to have been, or if the effect is idempotent.
        """
        answer = answer_of(call)
        ask = ask_of(call)
        # 1 One attempt per key in this process.
        attempt = await self._begin(call.key)
        try:
            # 2 Claim, or find the answer.
            claim = await self._claim(ask, attempt)
            if isinstance(claim, Parked):
                raise parked_by_row(call, claim)
            if isinstance(claim, Granted):
                attempt.renew_at = asyncio.get_running_loop().time() + self._lease_s / 3
                attempt.fence = claim.fence
                # 3 Call, and 4 settle.
                claim = await self._call(call, ask, claim, answer)
        finally:
            attempt.fence = None
            if attempt.undo is None:
                self._finish(call.key, attempt)
        return answer.read(claim.result, call)

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

    # 3 Call, and 4 settle.

    async def _call(self, call: EffectCall, ask: Ask, claim: Granted, answer: Answer) -> Stored:
        try:
            result = await call.fn(*call.args, idempotency_key=call.key, **call.kwargs)
        except BaseException as e:
            status = plan_failure(e, idempotent=call.idempotent, first=claim.first)
            told = self._debts.tell(_ending(ask, claim, status, note=_note(e)))
            if not isinstance(e, Exception):
                raise  # cancelled: the ending is written behind our back
            await asyncio.shield(told)
            if status is Status.IN_DOUBT:
                raise parked_by_error(call, e) from e
            raise
        try:
            text = answer.write(result)
        except ValueError as e:
            note = "happened, but its result cannot be stored"
            await asyncio.shield(self._debts.tell(_ending(ask, claim, Status.IN_DOUBT, note=note)))
            raise parked_by_result(call, e) from e
        reply = await asyncio.shield(
            self._debts.tell(_ending(ask, claim, Status.DONE, result=text))
        )
        if isinstance(reply, Stored):
            return reply
        raise parked_by_row(call, reply or Parked("in_doubt", None))

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
    )


def _ending(
    ask: Ask, claim: Granted, status: Status, *, result: str | None = None, note: str | None = None
) -> Ending:
    return Ending(ask.key, ask.fingerprint, status, claim.fence, result, note)


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


def _note(error: BaseException) -> str:
    """One line for `handoff effects ls`, in characters that Postgres can keep."""
    line = (str(error).strip().splitlines() or [""])[0]
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return text[:_NOTE_CHARS].replace("\0", "").encode("utf-8", "replace").decode()
