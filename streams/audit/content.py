"""A hash of what a step holds, equal for its record, its row in the history and its job's row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

import orjson

from streams.state.fold import Step

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
#: Control characters are escaped in JSON, so this one stands between fields only.
_BETWEEN: Final = "\x1e"
#: Enough to see a difference; collisions are none of an accident's doing.
CONTENT_BYTES: Final = 8


def content(step: Step) -> bytes:
    """As `pg_history` and `pg_jobs` compute it."""
    error = {} if step.error is None else orjson.loads(step.error)
    text = _BETWEEN.join(
        (
            str(step.attempts),
            step.data or "",
            error.get("kind", ""),
            error.get("message", ""),
            step.usage or "",
            step.worker or "",
            ",".join(step.handed_to),
            "" if step.born_us is None else str(step.born_us),
            str((step.updated_at - _EPOCH) // _MICROSECOND),
        )
    )
    return sha256(text.encode()).digest()[:CONTENT_BYTES]
