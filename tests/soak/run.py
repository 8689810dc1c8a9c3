"""One soak: load and faults, heal, drain, settle what is in doubt, then the verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from threading import Event, Lock
from typing import Final

from streams.audit import Options, audited
from streams.config import Settings
from streams.errors import BadWorld
from streams.postgres import connect
from tests.soak.crew import Sample
from tests.soak.doubts import Doubt, Happening, doubts, settle
from tests.soak.errands import Errand
from tests.soak.faults import doing
from tests.soak.judge import judge, unconsumed, unfinished
from tests.soak.load import Load
from tests.soak.plant import Plant, plant
from tests.soak.schedule import KINDS, Fault, schedule

#: With nothing moving for this long, nothing will.
_STALL_S: Final = 120.0
_LOOK_EVERY_S: Final = 0.5
_SAY_EVERY_S: Final = 20.0
#: What a worker's process may end with by itself: Kafka or Postgres was away, or it was fenced.
_EXCUSED_CODES: Final = {3, 4}

_EXAMPLES: Final = 5
#: Early and late must not be the same minutes.
_SHORTEST_FOR_LEAKS_S: Final = 420.0

_ENDED: Final = b"""
    SELECT count(*) FILTER (WHERE status IN ('done', 'failed', 'cancelled')
                            OR status = 'waiting' AND wakes_at IS NULL) AS ended
    FROM jobs
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Leak:
    """Slot 0 early (minutes 2 to 4) and late (the last two): resident MiB and open files."""

    early_mib: float
    late_mib: float
    early_files: float
    late_files: float
    #: How many processes that was; one, if nothing made it end.
    processes: int

    @property
    def found(self) -> bool:
        return self.late_mib > 1.1 * self.early_mib or self.late_files > self.early_files + 10


@dataclass(slots=True)
class Report:
    """All that a run says. `faults`: sentences; none of them: it has passed."""

    seed: int
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    doubts: list[Doubt] = field(default_factory=list)
    load_s: float = 0.0
    drain_s: float = 0.0
    leak: Leak | None = None
    verdict: str = ""


def soak(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    jobs: int,
    say: Say,
    gap_s: tuple[float, float] = (5.0, 20.0),
    longest_s: float = float("inf"),
) -> Report:
    """Run it; logs of everything are in `folder`. Raises what the harness itself got wrong."""
    report = Report(seed)
    planned = schedule(seed, seconds, gap_s, longest_s)
    with plant(folder) as hurt:
        for slot in (0, 1):
            hurt.crew.start(slot)
        began = time.monotonic()
        load = Load(hurt.proxied, seed, jobs, seconds * 0.9)
        with load.running():
            happenings = _hurt(hurt, planned, seconds, say)
        report.load_s = round(time.monotonic() - began, 1)
        report.leak = leak(hurt.crew.samples, report.load_s)
        say(f"healed after {report.load_s:.0f} s; {len(load.accepted):,} jobs are accepted")
        _drain(hurt, len(load.accepted), say)
        report.drain_s = round(time.monotonic() - began - report.load_s, 1)
        with connect(hurt.direct) as conn:
            report.doubts = doubts(conn, happenings, hurt.crew.lives)
            say(f"drained after {report.drain_s:.0f} s more; {len(report.doubts)} are in doubt")
            settle(conn, hurt.direct, report.doubts, hurt.desk.record)
        _drain(hurt, len(load.accepted), say)
        report.happened.update(each.kind for each in happenings)
        _judge(report, hurt, load.accepted)
        for slot in (0, 1):
            if (code := hurt.crew.dismiss(slot)) != 0:
                report.faults.append(f"slot {slot} was told to stop and ended with {code}")
    return report


def _hurt(hurt: Plant, planned: Sequence[Fault], seconds: float, say: Say) -> list[Happening]:
    """Do what is planned, when it is planned. Healed when it returns."""
    locks = {r: Lock() for kind in KINDS.values() for r in kind.resources}
    over = Event()
    began = time.monotonic()
    happenings: list[Happening] = []

    def do(fault: Fault) -> None:
        with ExitStack() as held:
            for resource in sorted(KINDS[fault.kind].resources):
                held.enter_context(locks[resource])
            if over.is_set():
                return
            since = time.time()
            say(f"{time.monotonic() - began:6.1f} s  {fault.kind} ({fault.lasts_s:.1f} s)")
            with doing(fault.kind)(hurt):
                over.wait(fault.lasts_s)
            happenings.append(Happening(fault.kind, since, time.time()))

    with ThreadPoolExecutor(8, "fault") as pool:
        doings: list[Future[None]] = []
        try:
            for fault in planned:
                _sleep_until(began + fault.at_s, doings)
                doings.append(pool.submit(do, fault))
            _sleep_until(began + seconds, doings)
        finally:
            over.set()
        for each in doings:
            each.result()
    return happenings


def _sleep_until(moment: float, doings: Sequence[Future[None]]) -> None:
    """Raises what one of `doings` has raised: then the harness is wrong."""
    while (left := moment - time.monotonic()) > 0:
        for each in doings:
            if each.done():
                each.result()
        time.sleep(min(left, _LOOK_EVERY_S))


def _drain(hurt: Plant, accepted: int, say: Say) -> None:
    """Wait until every job has ended and nothing is left to read, without a hand being moved.

    Raises `AssertionError` when nothing moves any more.
    """
    last, moved_at, said_at = -1, time.monotonic(), time.monotonic()
    # Postgres is asked first, being quick; it may be behind the topics.
    while (
        (ended := _ended(hurt.direct)) < accepted
        or unconsumed(hurt.direct)
        or unfinished(hurt.direct)
    ):
        now = time.monotonic()
        if ended != last:
            last, moved_at = ended, now
        if now - moved_at > _STALL_S:
            raise AssertionError(f"{ended:,} of {accepted:,} jobs ended, and nothing moves")
        if now - said_at > _SAY_EVERY_S:
            said_at = now
            say(f"draining: {ended:,} of {accepted:,} jobs ended")
        time.sleep(_LOOK_EVERY_S)


def _ended(settings: Settings) -> int:
    """Jobs that are over, or parked for an operator; -1 while Postgres still recovers."""
    try:
        with connect(settings) as conn:
            row = conn.execute(_ENDED).fetchone()
    except BadWorld:
        return -1
    assert row is not None
    return int(row["ended"])


def _judge(report: Report, hurt: Plant, accepted: Mapping[str, Errand]) -> None:
    told = judge(hurt.direct, accepted, hurt.desk.record)
    report.counts, report.faults = told.counts, list(told.faults)
    with audited(hurt.direct, Options(targets=(hurt.desk.record,))) as verdict:
        report.verdict = verdict.line()
        if not verdict.clean:
            report.faults.append(f"the audit: {verdict.line()}")
            report.faults += [f"audit: {f}" for f in islice(verdict.findings(), _EXAMPLES)]
    for doubt in report.doubts:
        if doubt.because is None:
            report.faults.append(f"nothing explains why {doubt.key} was in doubt: {doubt.note}")
    for life in hurt.crew.unexpected():
        report.exits[f"slot {life.slot}: {life.code}"] += 1
        if life.code not in _EXCUSED_CODES:
            report.faults.append(f"a worker of slot {life.slot} ended with {life.code}")
    if report.leak is not None and report.leak.found:
        report.faults.append(f"slot 0 grew: {report.leak}")


def leak(samples: Sequence[Sample], ended_s: float) -> Leak | None:
    """Slot 0 in minutes 2 to 4 against the last two of `ended_s`; None for a run too short."""
    early = [s for s in samples if 120 <= s.at_s < 240]
    late = [s for s in samples if ended_s - 120 <= s.at_s <= ended_s]
    if ended_s < _SHORTEST_FOR_LEAKS_S or not early or not late:
        return None
    return Leak(
        median(s.resident_mib for s in early),
        median(s.resident_mib for s in late),
        median(s.files for s in early),
        median(s.files for s in late),
        processes=len({s.pid for s in (*early, *late)}),
    )
