"""One job's story as a waterfall: from rows of history to hops, from hops to text. Pure.

Times are epoch microseconds. A hop has three phases: queued (its record was on the topic), working
(its handler ran, waits between attempts included), committing (until its state record was made).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

#: A stretch in which nothing works is drawn at most this share of all work long.
_IDLE_SHARE = 0.5

QUEUED, WORKING, COMMITTING, NOTHING = "░", "█", "▒", " "
#: Drawn in place of `QUEUED` where time is compressed.
COMPRESSED = "┄"


@dataclass(frozen=True, slots=True)
class Effect:
    """A side effect of a hop, from the ledger; `took_us` is None while it is not settled."""

    stage: str
    name: str
    status: str
    calls: int
    took_us: int | None


@dataclass(frozen=True, slots=True)
class Hop:
    """One committed step of the job."""

    seq: int
    stage: str
    status: str
    attempts: int
    to: tuple[str, ...]
    worker: str | None
    error: str | None
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
    born_us: int
    hops: tuple[Hop, ...]

    @property
    def status(self) -> str:
        return self.hops[-1].status

    @property
    def total_us(self) -> int:
        return max(h.committed_us for h in self.hops) - self.born_us


def waterfall(
    history: Sequence[Mapping[str, Any]], effects: Iterable[Mapping[str, Any]] = ()
) -> Waterfall:
    """From rows of `job_history` (at least one) and `effects` of one job, in any order."""
    rows = sorted(history, key=lambda r: (r["seq"], r["committed_us"]))
    of_stage: dict[str, list[Effect]] = {}
    for row in effects:
        of_stage.setdefault(row["stage"], []).append(_effect(row))
    hops = tuple(_hop(row, tuple(of_stage.get(row["stage"], ()))) for row in rows)
    born = [row["born_us"] for row in rows if row["born_us"] is not None]
    return Waterfall(
        job_id=rows[0]["trace_id"],
        flow=rows[0]["flow"],
        born_us=min([*born, *(h.produced_us for h in hops)]),
        hops=hops,
    )


def _hop(row: Mapping[str, Any], effects: tuple[Effect, ...]) -> Hop:
    committed: int = row["committed_us"]
    # Clocks of different machines differ by a little: a phase is never negative.
    produced = committed if row["produced_us"] is None else row["produced_us"]
    started = max(produced, row["started_us"] or produced)
    finished = max(started, row["finished_us"] or started)
    error = row["error"]
    return Hop(
        seq=row["seq"],
        stage=row["stage"],
        status=row["status"],
        attempts=row["attempts"],
        to=tuple(row["handed_to"] or ()),
        worker=row["worker"],
        error=f"{error['kind']}: {error['message']}" if error else None,
        produced_us=produced,
        started_us=started,
        finished_us=finished,
        committed_us=max(finished, committed),
        effects=effects,
    )


def _effect(row: Mapping[str, Any]) -> Effect:
    claimed: datetime = row["claimed_at"]
    settled: datetime | None = row["settled_at"]
    took = None if settled is None else round((settled - claimed).total_seconds() * 1e6)
    return Effect(row["stage"], row["name"], row["status"], row["calls"], took)


class Axis:
    """Time → columns. Stretches in which no hop works or commits are shortened."""

    def __init__(self, trace: Waterfall, columns: int) -> None:
        marks = {trace.born_us}
        for hop in trace.hops:
            marks |= {hop.produced_us, hop.started_us, hop.finished_us, hop.committed_us}
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

    def bar(self, hop: Hop) -> str:
        """The hop's phases as text, as long as the axis; work that took any time is visible."""
        cells = [NOTHING] * self._columns
        queue = COMPRESSED if self.shortened(hop.produced_us, hop.started_us) else QUEUED
        phases = (
            (hop.produced_us, hop.started_us, queue),
            (hop.finished_us, hop.committed_us, COMMITTING),
            (hop.started_us, hop.finished_us, WORKING),
        )
        for start_us, end_us, cell in phases:
            start = min(self.column(start_us), self._columns - 1)
            end = self.column(end_us)
            if end_us > start_us or cell is WORKING:
                cells[start : max(end, start + 1)] = cell * max(end - start, 1)
        return "".join(cells)


def _busy(trace: Waterfall, time_us: int) -> bool:
    return any(h.started_us <= time_us < h.committed_us for h in trace.hops)
