"""What an agent says of itself with each sign of life: the columns of `workers` that `why` reads.

`account` is JSON, bounded whatever is in flight. Times are seconds as of the row's `seen_at`, so
that they are read by Postgres' clock:

    {"limit_s": 300.0,               time limit of a run
     "attempts": 3,                  the limit of them
     "in_work": 2, "waiting": 1,     how many handlers run, how many records wait in place
     "read": {"0": 1042},            by partition: next offset to be delivered
     "runs": [["4bf9…", 1, 12.5]],   job, attempt, for how long; the longest first
     "waits": [["77aa…", 2, 3.1, "Attempt 2 of 3 …"]],   job, attempts spent, how long yet, why
     "limited": 57,                  of a stage with limits: how many wait for them
     "limits": [["81f0…", 0.4, 12, "limit model …"]]}   job, for how long, how many before it, which
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from streams.runtime.delivery import Delivery

#: So many runs and so many waits are named, of thousands perhaps: a row is rewritten each time.
NAMED: Final = 100
_REASON_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Account:
    """`paused` and `account` as the row takes them: neither holds what Postgres refuses."""

    paused: str | None = None
    account: str | None = None


Tell = Callable[[], Account]


def told(paused: str | None, held: Mapping[str, Any] | None = None) -> Account:
    """An account of `held` (see above); `paused` may hold whatever a handler has said."""
    return Account(
        None if paused is None else _clean(paused),
        None if held is None else orjson.dumps(held).decode(),
    )


def held(active: Collection[Delivery], now_us: int, now_loop: float) -> dict[str, Any]:
    """Of a stage's records in work: which run and which wait for their next run.

    `now_us` is epoch microseconds, `now_loop` the event loop's time in seconds.
    """
    runs = [d for d in active if d.task is not None]
    waits = [d for d in active if d.timer is not None]
    return {
        "in_work": len(runs),
        "waiting": len(waits),
        "runs": [
            (d.job_id, d.attempt, round((now_us - d.started_us) / 1e6, 3))
            for d in heapq.nsmallest(NAMED, runs, key=lambda d: d.started_us)
        ],
        "waits": [
            (d.job_id, d.attempt, round(d.again_at - now_loop, 3), _reason(d))
            for d in heapq.nlargest(NAMED, waits, key=lambda d: d.again_at)
        ],
    }


def _reason(d: Delivery) -> str:
    return "" if d.why is None else _clean(d.why.message)


def _clean(text: str) -> str:
    """Bounded, without halves of surrogate pairs and NULs."""
    return text[:_REASON_CHARS].encode(errors="backslashreplace").decode().replace("\0", "\\0")
