"""Why an effect waits for a person, in sentences."""

from __future__ import annotations

from streams.context import EffectCall
from streams.errors import EffectParked
from streams.ledger.rows import Parked
from streams.ledger.rules import Row, Status, past_of

_NEXT = "Find out at the target whether it happened: handoff effects ls --in-doubt."


def parked_by_row(call: EffectCall, parked: Parked) -> EffectParked:
    """The ledger's row forbids a call, or does not take this attempt's result."""
    row = parked.row
    if row is None:
        why = "has lost its row in the ledger while it was called, so its result is not stored"
    elif parked.kind == "fingerprint_mismatch":
        why = (
            f"was asked for again with other arguments, and {_past(row)}, so it was not called. "
            "Either the handler does not do the same on every run, or it uses this name for two "
            "effects, or the record was edited after the effect"
        )
    else:
        why = (
            f"may or may not have happened: {_past(row)}. It is not declared idempotent, so it was "
            f"not called again. {_NEXT[:-1]}"
        )
    return _parked(call, parked.kind, why)


def parked_by_error(call: EffectCall, error: Exception, target: str = "") -> EffectParked:
    """The function raised, which does not tell whether the effect happened; nor does the target."""
    asked = f", and {target}" if target else ""
    why = (
        f"may or may not have happened: its function raised {type(error).__name__}{asked}. It is "
        f"not declared idempotent, so it will not be called again. {_NEXT[:-1]}"
    )
    return _parked(call, "in_doubt", why)


def parked_by_target(call: EffectCall, note: str) -> EffectParked:
    """The target was asked about a dead attempt, and cannot tell."""
    why = f"may or may not have happened: {note}. So it was not called again. {_NEXT[:-1]}"
    return _parked(call, "in_doubt", why)


def parked_by_result(call: EffectCall, error: ValueError) -> EffectParked:
    """The effect happened, and its result cannot be kept for the runs to come."""
    why = (
        f"has happened, but its {type(error.__cause__ or error).__name__} says that the result has "
        "no JSON, so it cannot be stored. Let the function return plain values or a pydantic "
        "model that its return annotation names, then resolve the effect"
    )
    return _parked(call, "result_unstorable", why)


def _past(row: Row) -> str:
    if row.status is Status.DONE:
        return "it is done with the first ones"
    return past_of(row)


def _parked(call: EffectCall, kind: str, why: str) -> EffectParked:
    return EffectParked(
        f"Effect {call.name} of job {call.trace_id} at stage {call.stage} {why}.",
        kind=kind,
        key=call.key,
        trace_id=call.trace_id,
        stage=call.stage,
    )
