"""What a process knows of Postgres' clock: never more than the round trips tell. Pure."""

from __future__ import annotations

from typing import Final

#: Two clocks drift apart by less, also while one is being slewed.
_DRIFT: Final = 0.000_6


class ServerClock:
    """Bounds of Postgres' clock less this process's, both in microseconds.

    The server looked at its clock at some moment between the sending of the question and the coming
    of the answer; each answer narrows the bounds, and time widens them.
    """

    def __init__(self) -> None:
        self._low = self._high = self._at = 0
        self._known = False

    def observe(self, sent_us: int, came_us: int, server_us: int) -> bool:
        """Take in one answer. False: it fits in with nothing known before, so one of the clocks was
        set, and what the server's clock said before means nothing now."""
        low, high = server_us - came_us, server_us - sent_us
        fits = True
        if self._known:
            wider = int(max(0, came_us - self._at) * _DRIFT) + 1
            best_low, best_high = max(low, self._low - wider), min(high, self._high + wider)
            fits = best_low <= best_high
            if fits:
                low, high = best_low, best_high
        self._low, self._high, self._at, self._known = low, high, came_us, True
        return fits

    def window(self, from_us: int, to_us: int) -> tuple[int, int]:
        """From when until when, by this process's clock, the server's is surely between `from_us`
        and `to_us`; the end is before the beginning if it cannot be told so exactly."""
        return from_us - self._low, to_us - self._high
