"""Who may start when: moments and places of a limit's keys are given out. Pure.

All times are epoch microseconds by Postgres' clock. What a key has given out is in its `Row`, which
nobody else changes meanwhile.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from streams.limits.limit import Claim

#: Moments are given out for so long ahead: what a dead worker wastes, and how long a jump of the
#: clock is felt.
LOOKAHEAD_US: Final = 500_000
#: What comes later than this was given out before the clock was set back: no `lead` is so long.
FAR_US: Final = 5_000_000
#: Nobody is sent away for less.
_SHORTEST_WAIT_US: Final = 1_000_000


@dataclass(slots=True)
class Row:
    """One key of one limit, as it was found and as it is to be kept.

    `spacing_us` None: it has no rate. `free`: how many more may run at once; None: any number.
    `pace_us`: about how far apart its starts are when many wait.
    """

    spacing_us: int | None
    free: int | None
    pace_us: int
    #: Ascending: every moment within `spacing_us` before now, and all that come.
    booked: list[int] = field(default_factory=list)
    #: When the last of those who were sent away comes back.
    parked_us: int = 0
    #: Nothing starts before.
    closed_until_us: int = 0

    def prepare(self, now_us: int) -> None:
        """Forget what is over, and what was given out before the clock was set back: in truth that
        comes within the longest lead, so nothing else starts meanwhile."""
        if self.spacing_us is None:
            self.booked = []
            return
        if max(self.booked[-1:], default=0) > now_us + FAR_US:
            self.booked = []
            self.closed_until_us = now_us + FAR_US
        self.closed_until_us = min(self.closed_until_us, now_us + FAR_US)
        del self.booked[: bisect_right(self.booked, now_us - self.spacing_us)]

    def first(self, at: int) -> int:
        """The earliest moment from `at` on that is far enough from all that are booked."""
        spacing, at = self.spacing_us, max(at, self.closed_until_us)
        if spacing is None:
            return at
        for booked in self.booked[bisect_right(self.booked, at - spacing) :]:
            if booked - at >= spacing:
                break
            at = booked + spacing
        return at

    def take(self, at: int) -> None:
        """Book the moment `at`, which `first` has found, and a place."""
        if self.spacing_us is not None:
            insort(self.booked, at)
        if self.free is not None:
            self.free -= 1

    def park(self, now_us: int) -> int:
        """When one who is sent away had better come back; the next one later."""
        soonest = max(self.first(now_us), now_us + _SHORTEST_WAIT_US)
        self.parked_us = max(self.parked_us + self.pace_us, soonest)
        return self.parked_us

    def idle_at(self, now_us: int) -> int:
        """From when on the row says nothing that an absent one would not."""
        last = self.booked[-1] + (self.spacing_us or 0) if self.booked else now_us
        return max(now_us, last, self.parked_us, self.closed_until_us)


@dataclass(frozen=True, slots=True)
class Ask:
    """Of those who wait for the same `claims`: how many want to start, how many are sent away."""

    claims: tuple[Claim, ...]
    starts: int
    parks: int = 0


@dataclass(slots=True)
class Given:
    """Moments to start at, ascending, and when those who are sent away come back.

    `next_us`: the first moment that was too far away to be given; None if it was not a moment that
    was missing.
    """

    starts: list[int] = field(default_factory=list)
    wakes: list[int] = field(default_factory=list)
    next_us: int | None = None


def decide(
    rows: Mapping[Claim, Row], asks: Sequence[Ask], room: int, now_us: int, lead_us: int
) -> list[Given]:
    """Give out moments from `lead_us` on, `room` at most, the earliest first; where two lines could
    have the same one, to the line that has got less."""
    given = [Given() for _ in asks]
    for row in rows.values():
        row.prepare(now_us)
    heap = [
        (_fit(_rows(rows, ask), now_us + lead_us), 0, n)
        for n, ask in enumerate(asks)
        if ask.starts > 0
    ]
    heapq.heapify(heap)
    end_us = now_us + lead_us + LOOKAHEAD_US
    while heap and room > 0:
        at, got, n = heapq.heappop(heap)
        mine = _rows(rows, asks[n])
        if any(row.free is not None and row.free <= 0 for row in mine):
            continue
        if (fits := _fit(mine, at)) != at:
            # Another line has taken it.
            heapq.heappush(heap, (fits, got, n))
        elif at > end_us:
            given[n].next_us = at
        else:
            for row in mine:
                row.take(at)
            given[n].starts.append(at)
            room -= 1
            if got + 1 < asks[n].starts:
                heapq.heappush(heap, (_fit(mine, at), got + 1, n))
    for each, ask in zip(given, asks, strict=True):
        mine = _rows(rows, ask)
        each.wakes = sorted(max(row.park(now_us) for row in mine) for _ in range(ask.parks))
    return given


def _rows(rows: Mapping[Claim, Row], ask: Ask) -> list[Row]:
    return [rows[claim] for claim in ask.claims]


def _fit(rows: Iterable[Row], at: int) -> int:
    """The earliest moment from `at` on that suits all of `rows`."""
    rows = list(rows)
    while True:
        later = max((row.first(at) for row in rows), default=at)
        if later == at:
            return at
        at = later
