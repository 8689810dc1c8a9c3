"""Retry decisions: pure, so that they can be tested without a clock."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from streams.errors import BadSetup

Errors = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a failing handler runs, how long it waits in between, and after which errors.

    The n-th wait is `first * factor**(n-1)`, at most `limit`, then spread by full jitter down to
    half of it, so that jobs which failed together do not come back together. Waits up to `in_place`
    are held in memory; longer ones are a committed step and a timer, which survive any restart.

    An error is tried again if it is of a class in `retry_on` and of none in `give_up_on`. Errors of
    the record (`BadRecord`) never are, those of the world (`BadWorld`) always, at no attempt.
    """

    attempts: int = 5
    first: timedelta = timedelta(milliseconds=200)
    factor: float = 2.0
    limit: timedelta = timedelta(seconds=30)
    in_place: timedelta = timedelta(seconds=5)
    retry_on: Errors = (BaseException,)
    give_up_on: Errors = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise BadSetup(f"Backoff: attempts must be at least 1, not {self.attempts}.")
        for name in ("first", "limit", "in_place"):
            if getattr(self, name) < timedelta(0):
                raise BadSetup(f"Backoff: {name} must not be negative.")
        for name in ("retry_on", "give_up_on"):
            if not _are_errors(getattr(self, name)):
                raise BadSetup(
                    f"Backoff: {name} takes a tuple of exception classes, as (OSError, KeyError)."
                )

    def retries(self, error: BaseException) -> bool:
        """Whether `error` is of a kind that is tried again at all."""
        return isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)

    def wait_seconds(self, failed_attempts: int, rng: random.Random) -> float | None:
        """Seconds until the next run after `failed_attempts` (>= 1) runs, or None to give up."""
        if failed_attempts >= self.attempts:
            return None
        # The exponent is bounded, since a float power overflows.
        grown = self.first.total_seconds() * self.factor ** min(failed_attempts - 1, 64)
        return min(grown, self.limit.total_seconds()) * (0.5 + rng.random() / 2)


def _are_errors(found: object) -> bool:
    return isinstance(found, tuple) and all(
        isinstance(each, type) and issubclass(each, BaseException) for each in found
    )
