"""`Retry-After` of an HTTP answer (RFC 9110, 10.2.3). Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

#: More digits than any wait that makes sense, and fewer than overflow anything.
_DIGITS: Final = 9
_HALF_CENTURY: Final = timedelta(days=50 * 365.25)
_YEARS: Final = 100


def seconds(value: str | None, now: datetime) -> float | None:
    """How long to wait by `value`, which is a number of seconds or an HTTP date; never negative.

    `now` has a time zone. None for no value and for one that is neither.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_DIGITS]) if len(text) <= _DIGITS else float("9" * _DIGITS)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    # The two older forms of a date carry no zone: it is always GMT.
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    try:
        if moment - now > _HALF_CENTURY:
            # Two digits of a year that seem to be that far ahead mean the past.
            moment = moment.replace(year=moment.year - _YEARS)
    except ValueError:
        return None
    return max(0.0, (moment - now).total_seconds())
