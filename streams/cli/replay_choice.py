"""Which records a replay means: what a person may write after --from, --to and --filter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from schemas.state import Status
from streams.cli.filters import filter_words
from streams.errors import BadSetup
from streams.replay.selection import Bound, OfJobs

#: `2h`, `7d` or ISO 8601 → a moment.
When = Callable[[str], datetime]

_JOB_FIELDS = ("status", "stage", "flow", "since")


def parse_bound(text: str | None, when: When) -> Bound | None:
    """Digits are an offset, anything else a time. Raises `BadSetup`."""
    if text is None:
        return None
    if text.isdigit():
        return Bound(offset=int(text))
    return Bound(at_ms=int(when(text).timestamp() * 1000))


def parse_jobs(text: str, when: When) -> OfJobs:
    """`status=failed stage=enrich since=1h`. Raises `BadSetup` that says what is wrong."""
    found = filter_words(text, _JOB_FIELDS, "job there is")
    status = found.get("status")
    if status is not None and status not in set(Status):
        raise BadSetup(f"--filter status={status}: a status is one of {', '.join(Status)}.")
    return OfJobs(
        status=None if status is None else Status(status),
        stage=found.get("stage"),
        flow=found.get("flow"),
        since=when(found["since"]) if "since" in found else None,
    )
