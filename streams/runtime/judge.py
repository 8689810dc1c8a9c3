"""What a failed run means for its record, by blame. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from schemas.state import JobError, Status, job_error
from streams.errors import BadRecord, BadSetup, BadWorld, EffectParked
from streams.retry import Backoff


class RetryAsked(Exception):
    """The handler returned `Retry`."""

    def __init__(self, after_s: float, reason: str) -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class RunAgain:
    """After `wait_s`; the attempt counts. `error` says why it waits.

    `in_place`: held in memory; otherwise the wait is a committed step, and a timer ends it.
    """

    wait_s: float
    in_place: bool
    error: JobError


@dataclass(frozen=True, slots=True)
class WorldIsBad:
    """The stage pauses, `after_s` long if the other side said so; no attempt is spent."""

    reason: str
    after_s: float | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The record goes to the dead-letter topic, its job to `status`."""

    error: JobError
    status: Status = Status.FAILED


def judge(
    error: BaseException, *, stage: str, attempt: int, policy: Backoff, rng: random.Random
) -> RunAgain | WorldIsBad | GiveUp:
    """The fate of a record whose `attempt`-th run (from 1) raised `error`."""
    match error:
        case BadWorld():
            return WorldIsBad(error.message, error.after_s)
        case EffectParked():
            return GiveUp(job_error(error.kind, error.message), Status.WAITING)
        case BadRecord():
            return GiveUp(job_error(error.kind, error.message))
        case BadSetup():
            return GiveUp(job_error("bad_setup", error.message))
    asked = isinstance(error, RetryAsked)
    wait_s = policy.wait_seconds(attempt, rng) if asked or policy.retries(error) else None
    if wait_s is None:
        times = "once" if attempt == 1 else f"{attempt} times"
        return GiveUp(job_error("handler_failed", f"Stage {stage} failed {times}: {_said(error)}"))
    if isinstance(error, RetryAsked):
        wait_s = max(wait_s, error.after_s)
    in_place = wait_s <= policy.in_place.total_seconds()
    why = f"Attempt {attempt} of {policy.attempts} of stage {stage}: {_said(error)}"
    return RunAgain(wait_s, in_place, job_error("retry", why))


def unusable(place: str, fault: str) -> GiveUp:
    """For a record whose key, headers or size rule it out."""
    return GiveUp(job_error(BadRecord.kind, f"The record at {place} is unusable: {fault}."))


def not_valid(place: str, error: ValidationError, model: type[BaseModel]) -> GiveUp:
    """Says which fields are wrong and how; never their values, which may be private."""
    faults = "; ".join(
        f"{'.'.join(map(str, x['loc'])) or 'the whole'}: {x['msg']}"
        for x in error.errors(include_url=False, include_context=False, include_input=False)[:5]
    )
    return GiveUp(
        job_error(BadRecord.kind, f"The record at {place} is no {model.__name__}: {faults}.")
    )


def _said(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    name = type(error).__name__
    return f"{name}: {text}" if text else name
