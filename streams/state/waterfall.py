"""One job's story as a waterfall: from rows of history to hops, from hops to text. Pure.

Times are epoch microseconds. A hop has three phases: queued (its record was on the topic), working
(its handler ran, waits between attempts included), committing (until its state record was made).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from schemas.ids import parent_of
from schemas.state import Status
from streams.state.forks import ForkStory
from streams.state.runs import RunMove
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
    #: How the step before ended, and how long after it this one's record was written: until a timer
    #: was due, or until somebody redrove the job. None and 0 for the first step.
    after: Status | None = None
    gap_us: int = 0
    #: Of a step that forked: what became of its branches.
    fork: ForkStory | None = None
    #: Of a step that moved a run on: what it did of it.
    run: RunMove | None = None

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
class Pending:
    """The step that a running job is to do next: handed on, queued or in work, not committed."""

    seq: int
    stages: tuple[str, ...]
    since_us: int
    now_us: int
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Waterfall:
    """All known steps of one job, by seq."""

    job_id: str
    flow: str
    status: str
    born_us: int
    lanes: tuple[Lane, ...]
    pending: Pending | None = None

    @property
    def parent(self) -> str | None:
        """The job that forked this one, if one did; both are of one trace."""
        return parent_of(self.job_id)

    @property
    def total_us(self) -> int:
        """From the job's birth to its last commit, or until now where it is under way."""
        ends = [lane.committed_us for lane in self.lanes]
        if self.pending is not None:
            ends.append(self.pending.now_us)
        return max(ends) - self.born_us


def waterfall(
    history: Sequence[Hop],
    effects: Iterable[Effect] = (),
    now_us: int | None = None,
    forks: Iterable[ForkStory] = (),
    moves: Mapping[int, RunMove] | None = None,
) -> Waterfall:
    """The story of one job from all its hops (at least one), its rows of the ledger, its forks and
    what its steps did of its runs.

    With `now_us` the step that a running job has yet to commit is part of it.
    """
    hops = sorted(history, key=lambda h: (h.seq, h.committed_us))
    lanes = [_lane(hop) for hop in hops]
    last = lanes[-1]
    pending = None
    if now_us is not None and last.hop.status is Status.RUNNING:
        now_us = max(now_us, last.committed_us)
        pending = Pending(last.hop.seq + 1, last.hop.to, last.committed_us, now_us)
    told = _effects_by_step(lanes, pending, effects)
    forked = {each.join.seq: each for each in forks}
    before = [None, *lanes]
    lanes = [
        replace(
            lane,
            effects=tuple(told.get(lane.hop.seq, ())),
            after=None if previous is None else previous.hop.status,
            gap_us=0 if previous is None else max(0, lane.produced_us - previous.committed_us),
            fork=forked.get(lane.hop.seq),
            run=None if moves is None else moves.get(lane.hop.seq),
        )
        for lane, previous in zip(lanes, before, strict=False)
    ]
    if pending is not None:
        pending = replace(pending, effects=tuple(told.get(pending.seq, ())))
    born = [hop.timing.born_us for hop in hops if hop.timing is not None]
    return Waterfall(
        job_id=hops[0].trace_id,
        flow=hops[0].flow,
        status=hops[-1].status.value,
        born_us=min([*born, *(lane.produced_us for lane in lanes)]),
        lanes=tuple(lanes),
        pending=pending,
    )


def _effects_by_step(
    lanes: Sequence[Lane], pending: Pending | None, effects: Iterable[Effect]
) -> dict[int, list[Effect]]:
    """Each effect once, by the seq of the step of its stage that claimed it.

    A step that was tried again, or redriven, gets its stored answers from the one before.
    """
    found: dict[int, list[Effect]] = {}
    for effect in effects:
        claimed_us = round(effect.claimed_at.timestamp() * 1e6)
        steps = [lane for lane in lanes if lane.hop.stage == effect.stage]
        ended_later = [lane.hop.seq for lane in steps if lane.committed_us >= claimed_us]
        if ended_later:
            seq = ended_later[0]
        elif pending is not None and effect.stage in pending.stages:
            seq = pending.seq
        elif steps:
            # The clocks of Postgres and of the worker differ.
            seq = steps[-1].hop.seq
        else:
            continue
        found.setdefault(seq, []).append(effect)
    return found


def _lane(hop: Hop) -> Lane:
    if hop.timing is None:
        at = hop.committed_us
        return Lane(hop, at, at, at, at)
    # Clocks differ by a little, and Kafka's timestamps have no microseconds: no phase is negative.
    produced = hop.timing.produced_us
    started = max(produced, hop.timing.started_us)
    finished = max(started, hop.timing.finished_us)
    return Lane(hop, produced, started, finished, max(finished, hop.committed_us))


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
        if trace.pending is not None:
            marks |= {trace.pending.since_us, trace.pending.now_us}
        self._times = sorted(marks)
        stretches = [(a, b, _busy(trace, a)) for a, b in pairwise(self._times)]
        work = sum(b - a for a, b, busy in stretches if busy)
        limit = max(1.0, work * _IDLE_SHARE)
        self._at = [0.0]
        self._short: list[bool] = []
        #: What the shortened stretches are longer than they are drawn.
        self.left_out_us = 0.0
        for start, end, busy in stretches:
            length = float(end - start)
            self._short.append(not busy and length > limit)
            self._at.append(self._at[-1] + (limit if self._short[-1] else length))
            self.left_out_us += length - limit if self._short[-1] else 0.0
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

    def waiting_bar(self, pending: Pending) -> str:
        """The step under way, from its hand-off until now; how much of it is work is not known."""
        start = min(self.column(pending.since_us), self._columns - 1)
        width = max(1, self.column(pending.now_us) - start)
        short = self.shortened(pending.since_us, pending.now_us)
        return (NOTHING * start + (COMPRESSED if short else QUEUED) * width).ljust(self._columns)


def _busy(trace: Waterfall, time_us: int) -> bool:
    return any(x.started_us <= time_us < x.committed_us for x in trace.lanes)
