"""Times as people give them on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from streams.errors import BadSetup

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"(\d{1,6})([smhd])")


def since_when(text: str, now: datetime, option: str = "--since") -> datetime:
    """`90s`, `15m`, `2h`, `7d` before `now`, or an ISO 8601 time (UTC unless it says otherwise).

    Raises `BadSetup` that names the `option` which holds neither."""
    ago = _AGO.fullmatch(text)
    if ago:
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadSetup(
            f"{option} takes 90s, 15m, 2h, 7d or an ISO 8601 time; {text!r} is neither."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
