"""One job's story as a waterfall: from rows of history to hops, from hops to text. Pure.

Times are epoch microseconds. A hop has three phases: queued (its record was on the topic), working
(its handler ran, waits between attempts included), committing (until its state record was made).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from streams.state.views import Effect, Hop

#: A stretch in which nothing works is drawn at most this share of all work long.
_IDLE_SHARE = 0.5

QUEUED, WORKING, COMMITTING, NOTHING = "░", "█", "▒", " "
#: Drawn in place of `QUEUED` where time is compressed.
COMPRESSED = "┄"


@dataclass(frozen=True, slots=True)
class Lane:
    """One hop and its times, in order: produced ≤ started ≤ finished ≤ committed."""

    hop: Hop
    produced_us: int
    started_us: int
    finished_us: int
    committed_us: int
    effects: tuple[Effect, ...] = ()

    @property
    def queued_us(self) -> int:
        return self.started_us - self.produced_us

    @property
    def working_us(self) -> int:
        return self.finished_us - self.started_us

    @property
    def committing_us(self) -> int:
        return self.committed_us - self.finished_us


@dataclass(frozen=True, slots=True)
class Waterfall:
    """All known steps of one job, by seq."""

    job_id: str
    flow: str
    status: str
    born_us: int
    lanes: tuple[Lane, ...]

    @property
    def total_us(self) -> int:
        return max(lane.committed_us for lane in self.lanes) - self.born_us


def waterfall(history: Sequence[Hop], effects: Iterable[Effect] = ()) -> Waterfall:
    """The story of one job from all its hops (at least one) and its rows of the ledger."""
    hops = sorted(history, key=lambda h: (h.seq, h.committed_us))
    of_stage: dict[str, list[Effect]] = {}
    for effect in effects:
        of_stage.setdefault(effect.stage, []).append(effect)
    lanes = tuple(_lane(hop, tuple(of_stage.get(hop.stage, ()))) for hop in hops)
    born = [hop.timing.born_us for hop in hops if hop.timing is not None]
    return Waterfall(
        job_id=hops[0].trace_id,
        flow=hops[0].flow,
        status=hops[-1].status.value,
        born_us=min([*born, *(lane.produced_us for lane in lanes)]),
        lanes=lanes,
    )


def _lane(hop: Hop, effects: tuple[Effect, ...]) -> Lane:
    if hop.timing is None:
        at = hop.committed_us
        return Lane(hop, at, at, at, at, effects)
    # Clocks differ by a little, and Kafka's timestamps have no microseconds: no phase is negative.
    produced = hop.timing.produced_us
    started = max(produced, hop.timing.started_us)
    finished = max(started, hop.timing.finished_us)
    return Lane(hop, produced, started, finished, max(finished, hop.committed_us), effects)


def took_us(effect: Effect) -> int | None:
    """From its claim to its settlement; None while it is not settled."""
    if effect.settled_at is None:
        return None
    return round((effect.settled_at - effect.claimed_at).total_seconds() * 1e6)


class Axis:
    """Time → columns. Stretches in which no hop works or commits are shortened."""

    def __init__(self, trace: Waterfall, columns: int) -> None:
        marks = {trace.born_us}
        for lane in trace.lanes:
            marks |= {lane.produced_us, lane.started_us, lane.finished_us, lane.committed_us}
        self._times = sorted(marks)
        stretches = [(a, b, _busy(trace, a)) for a, b in pairwise(self._times)]
        work = sum(b - a for a, b, busy in stretches if busy)
        limit = max(1.0, work * _IDLE_SHARE)
        self._at = [0.0]
        self._short: list[bool] = []
        for start, end, busy in stretches:
            length = float(end - start)
            self._short.append(not busy and length > limit)
            self._at.append(self._at[-1] + (limit if self._short[-1] else length))
        self._scale = columns / max(self._at[-1], 1.0)
        self._columns = columns

    @property
    def compressed(self) -> bool:
        return any(self._short)

    def column(self, time_us: int) -> int:
        """Column of a time that is the edge of a phase; at most the number of columns."""
        i = bisect_right(self._times, time_us) - 1
        return min(self._columns, round(self._at[i] * self._scale))

    def shortened(self, start_us: int, end_us: int) -> bool:
        return any(
            short and start_us <= a < end_us
            for a, short in zip(self._times, self._short, strict=False)
        )

    def bar(self, lane: Lane) -> str:
        """The lane's phases as text, as long as the axis; work that took any time is visible."""
        cells = [NOTHING] * self._columns
        queue = COMPRESSED if self.shortened(lane.produced_us, lane.started_us) else QUEUED
        phases = (
            (lane.produced_us, lane.started_us, queue),
            (lane.finished_us, lane.committed_us, COMMITTING),
            (lane.started_us, lane.finished_us, WORKING),
        )
        for start_us, end_us, cell in phases:
            start = min(self.column(start_us), self._columns - 1)
            end = self.column(end_us)
            if end_us > start_us or cell is WORKING:
                cells[start : max(end, start + 1)] = cell * max(end - start, 1)
        return "".join(cells)


def _busy(trace: Waterfall, time_us: int) -> bool:
    return any(x.started_us <= time_us < x.committed_us for x in trace.lanes)
