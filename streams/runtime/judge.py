"""What a failed run means for its record, by blame. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from schemas.state import JobError, Status
from streams.errors import BadRecord, BadSetup, BadWorld, EffectParked
from streams.retry import Backoff
from streams.runtime.records import job_error

#: How long to wait when the world is bad: no attempt is spent, and it may last.
WORLD_PAUSE = Backoff(attempts=2**31)


class RetryAsked(Exception):
    """The handler returned `Retry`."""

    def __init__(self, after_s: float, reason: str) -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class RunAgain:
    """After `wait_s`. `spends`: whether the attempt counts against the stage's policy."""

    wait_s: float
    spends: bool = True


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The record goes to the dead-letter topic, its job to `status`."""

    error: JobError
    status: Status = Status.FAILED


def judge(
    error: BaseException, *, stage: str, attempt: int, policy: Backoff, rng: random.Random
) -> RunAgain | GiveUp:
    """The fate of a record whose `attempt`-th run (from 1) raised `error`."""
    match error:
        case BadWorld():
            return RunAgain(WORLD_PAUSE.wait_seconds(2, rng) or 0.0, spends=False)
        case EffectParked():
            return GiveUp(job_error(error.kind, error.message), Status.WAITING)
        case BadRecord():
            return GiveUp(job_error(error.kind, error.message))
        case BadSetup():
            return GiveUp(job_error("bad_setup", error.message))
    wait_s = policy.wait_seconds(attempt, rng)
    if wait_s is None:
        what = _text(error)
        message = f"{type(error).__name__}: {what}" if what else type(error).__name__
        times = "once" if attempt == 1 else f"{attempt} times"
        return GiveUp(job_error("handler_failed", f"Stage {stage} failed {times}: {message}"))
    return RunAgain(max(wait_s, error.after_s) if isinstance(error, RetryAsked) else wait_s)


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


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be had)"
