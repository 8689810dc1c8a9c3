"""Retry decisions: pure, so that they can be tested without a clock."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a failing handler runs, and how long it waits in between.

    The n-th wait is `first * factor**(n-1)`, at most `limit`, then spread by full jitter down to
    half of it, so that jobs which failed together do not come back together.
    """

    attempts: int = 5
    first: timedelta = timedelta(milliseconds=200)
    factor: float = 2.0
    limit: timedelta = timedelta(seconds=30)

    def wait_seconds(self, failed_attempts: int, rng: random.Random) -> float | None:
        """Seconds until the next run after `failed_attempts` (>= 1) runs, or None to give up."""
        if failed_attempts >= self.attempts:
            return None
        # The exponent is bounded, since a float power overflows.
        grown = self.first.total_seconds() * self.factor ** min(failed_attempts - 1, 64)
        return min(grown, self.limit.total_seconds()) * (0.5 + rng.random() / 2)
