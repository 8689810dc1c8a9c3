"""What is done under a claim: 3 call, or ask the target first; 4 settle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from streams.context import DidNotHappen, EffectCall, Happened, Reconciled, Unknown
from streams.crashpoints import reach
from streams.errors import BadWorld, EffectParked
from streams.ledger.debts import Debts, Reply
from streams.ledger.parked import (
    parked_by_error,
    parked_by_result,
    parked_by_row,
    parked_by_target,
)
from streams.ledger.rows import Granted, Parked, Rows, Stored
from streams.ledger.rules import Ask, Ending, Status, plan_failure
from streams.ledger.values import Answer

_NOTE_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class _Work:
    """An effect under our claim."""

    call: EffectCall
    ask: Ask
    claim: Granted
    answer: Answer

    def ending(
        self, status: Status, note: str | None, result: str | None = None, *, called: bool = False
    ) -> Ending:
        ask, fence = self.ask, self.claim.fence
        note = None if note is None else keepable(note)
        return Ending(ask.key, ask.fingerprint, status, fence, result, note, called)

    @property
    def not_called(self) -> Status:
        """How the claim ends if this attempt did not call, or certainly did nothing."""
        return Status.RELEASED if self.claim.first else Status.CLAIMED


class Calls:
    """Does the work of claims that are held; the caller renews their leases meanwhile.

    Whatever happens, what is known of the effect is told to the ledger, or kept as a debt.
    """

    def __init__(self, rows: Rows, debts: Debts) -> None:
        self._rows = rows
        self._debts = debts

    async def run(
        self, call: EffectCall, ask: Ask, claim: Granted, answer: Answer, *, stale: bool
    ) -> Stored | None:
        """The result that counts. None: the claim is not ours any more, and nothing was called.

        `stale`: so much time has passed since the claim was asked for that its lease may be over.
        Raises what `Ledger.run` raises.
        """
        work = _Work(call, ask, claim, answer)
        if claim.asking:
            settled = await self._ask_about_predecessor(work)
            if settled is not None:
                return settled
            work = replace(work, claim=replace(claim, first=True))
        # No call under a lease that is over: whoever claimed since may have asked the target, been
        # told that nothing has happened, and called.
        if (claim.asking or stale) and not await self._still_ours(work):
            # Where it was only doubted, we know better.
            await self._tell(work.ending(work.not_called, "claimed and not called"))
            return None
        reach("ledger.claimed")
        try:
            result = await call.fn(*call.args, idempotency_key=call.key, **call.kwargs)
        except BaseException as e:
            return await self._after_error(work, e)
        reach("ledger.called")
        return await self._settle(work, result, called=True)

    async def _still_ours(self, work: _Work) -> bool:
        claim = work.claim
        try:
            return await self._rows.confirm(work.ask.key, claim.fence, recalled=claim.asking)
        except BaseException:
            self._debts.tell(work.ending(work.not_called, "claimed and not called"))
            raise

    # -- unknown outcomes ------------------------------------------------------------------------

    async def _ask_about_predecessor(self, work: _Work) -> Stored | None:
        """The result, if the dead attempt's call happened; None if it is to be made again."""
        answer = await self._reconcile(work)
        match answer:
            case Happened():
                # Its call, not ours: should it settle late itself, that is no second one.
                return await self._settle(work, answer.result, called=False)
            case DidNotHappen():
                return None
            case Unknown():
                note = f"{answer.reason}; before that: {work.claim.past}"
                return await self._doubt(work, note, parked_by_target(work.call, note))

    async def _after_error(self, work: _Work, error: BaseException) -> Stored:
        """The function raised: raise on, or park, unless the target knows the effect."""
        call = work.call
        status = plan_failure(
            error,
            idempotent=call.idempotent,
            first=work.claim.first,
            reconcilable=call.reconcile is not None,
        )
        note = note_of(error)
        if not isinstance(error, Exception):
            self._debts.tell(work.ending(status, note))
            raise error  # cancelled: the ending is written behind our back
        if status is Status.IN_DOUBT:
            return await self._doubt(work, note, parked_by_error(call, error), error)
        if status is Status.CLAIMED and not call.idempotent:
            return await self._ask_about_own(work, error)
        await self._tell(work.ending(status, note))
        raise error

    async def _ask_about_own(self, work: _Work, error: Exception) -> Stored:
        """The target knows better than an exception whether our own call happened."""
        answer = await self._reconcile(work)
        match answer:
            case Happened():
                return await self._settle(work, answer.result, called=True)
            case DidNotHappen():
                # Not called again at once: when, and how often, is for the retry policy to say.
                await self._tell(work.ending(work.not_called, note_of(error)))
                raise error
            case Unknown():
                note = f"{answer.reason}; before that: {note_of(error)}"
                parked = parked_by_error(work.call, error, answer.reason)
                return await self._doubt(work, note, parked, error)

    async def _reconcile(self, work: _Work) -> Reconciled[Any]:
        """What the target says. Raises `BadWorld`, or as cancelled: to be asked again later."""
        call = work.call
        assert call.reconcile is not None
        try:
            answer: Any = await call.reconcile(*call.args, idempotency_key=call.key, **call.kwargs)
        except BaseException as e:
            if isinstance(e, Exception) and not isinstance(e, BadWorld):
                return Unknown(f"the reconcile function raised {note_of(e)}")
            # The lease is given up: the next run finds an attempt of unknown outcome, and asks.
            told = self._debts.tell(work.ending(Status.CLAIMED, f"not reconciled: {note_of(e)}"))
            if isinstance(e, Exception):
                await asyncio.shield(told)
            raise
        reach("ledger.reconciled")
        if isinstance(answer, Unknown):
            return Unknown(keepable(f"the target cannot tell: {answer.reason}"))
        if isinstance(answer, Happened | DidNotHappen):
            return answer
        return Unknown(
            f"the reconcile function returned {type(answer).__name__}, which says nothing"
        )

    # -- 4 ---------------------------------------------------------------------------------------

    async def _settle(self, work: _Work, result: Any, *, called: bool) -> Stored:
        try:
            text = work.answer.write(result)
        except ValueError as e:
            note = "happened, but its result cannot be stored"
            return await self._doubt(work, note, parked_by_result(work.call, e), e)
        reply = await self._tell(work.ending(Status.DONE, None, text, called=called))
        reach("ledger.settled")
        if isinstance(reply, Stored):
            return reply
        raise parked_by_row(work.call, reply or Parked("in_doubt", None))

    async def _doubt(
        self, work: _Work, note: str, parked: EffectParked, cause: Exception | None = None
    ) -> Stored:
        """Mark the row in doubt and park the job; the result if another attempt has it by now."""
        reply = await self._tell(work.ending(Status.IN_DOUBT, note))
        reach("ledger.doubted")
        if isinstance(reply, Stored):
            return reply
        raise parked from cause

    async def _tell(self, ending: Ending) -> Reply:
        return await asyncio.shield(self._debts.tell(ending))


def note_of(error: BaseException) -> str:
    """One line for `handoff effects ls`."""
    try:
        said = str(error)
    except Exception:
        said = "(its text cannot be had)"
    line = (said.strip().splitlines() or [""])[0]
    return keepable(f"{type(error).__name__}: {line}" if line else type(error).__name__)


def keepable(text: str) -> str:
    """`text` in characters that Postgres can keep, and not too many of them."""
    return text[:_NOTE_CHARS].replace("\0", "").encode("utf-8", "replace").decode()
