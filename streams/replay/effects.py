"""Effects in a replay: answered by what the ledger keeps, never called."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NoReturn

from streams.context import EffectCall
from streams.errors import EffectParked
from streams.ledger.effects import ask_of
from streams.ledger.rules import Status
from streams.ledger.values import answer_of
from streams.replay.facts import Case, KeptEffect


class Policy(StrEnum):
    """`--effects`: answered from the ledger, or none at all."""

    LEDGER = "ledger"
    BLOCK = "block"


class Ended(StrEnum):
    """Why a run was ended at an effect."""

    #: Nothing of the kind happened.
    NEW = "new"
    #: It happened with other arguments.
    CHANGED = "changed"
    #: It was asked for, but no answer is kept.
    UNKNOWN = "unknown"


class RunEnded(BaseException):
    """Ends a handler's run at an effect that has no answer. No `except Exception` catches it."""


class KeptEffects:
    """An `EffectRunner` for one record. `ended` tells at which effect its run ended, if at one."""

    def __init__(self, case: Case, policy: Policy) -> None:
        self._kept = {e.key: e for e in case.effects}
        self._pruned = case.pruned
        self._parked_for = case.step.error.kind if case.step and case.step.error else ""
        self._policy = policy
        #: Keys in the order in which they were first asked for.
        self.asked: dict[str, None] = {}
        self.ended: tuple[Ended, str] | None = None

    async def run(self, call: EffectCall) -> Any:
        """The stored result. Raises `EffectParked` as the ledger does, `BadRecord` or `BadSetup`
        for a call that could not be made, or `RunEnded`."""
        answer, ask = answer_of(call), ask_of(call)
        self.asked.setdefault(call.key)
        kept = self._kept.get(call.key)
        if self._policy is Policy.BLOCK:
            self._end(Ended.NEW, call)
        if kept is None or kept.status in (Status.RELEASED, Status.CLAIMED):
            lost = kept is not None or self._pruned
            self._end(Ended.UNKNOWN if lost else Ended.NEW, call)
        if kept.fingerprint not in (None, ask.fingerprint):
            self._other_arguments(call)
        if kept.status == Status.IN_DOUBT or kept.result is None:
            raise _parked(call, "in_doubt", "is in doubt")
        return answer.read(kept.result, call)

    def _other_arguments(self, call: EffectCall) -> None:
        if self._parked_for == "fingerprint_mismatch":
            # So it was in production.
            raise _parked(call, self._parked_for, "was asked for with other arguments before")
        self._end(Ended.CHANGED, call)

    def _end(self, why: Ended, call: EffectCall) -> NoReturn:
        if self.ended is None:
            self.ended = (why, call.name)
        raise RunEnded

    def unasked(self) -> list[KeptEffect]:
        """Effects that happened and were not asked for."""
        return [e for e in self._kept.values() if e.status == "done" and e.key not in self.asked]


def _parked(call: EffectCall, kind: str, why: str) -> EffectParked:
    return EffectParked(f"Effect {call.name} {why}.", kind=kind, key=call.key)
