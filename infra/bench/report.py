"""From measurements to what people read: a table per workload, the goals, and JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.bench.figures import (
    median,
    per_million,
    per_thousand,
    ratio_by_round,
    ratios_by_round,
)
from infra.bench.roster import (
    CONTROL,
    FAUST,
    OURS,
    OURS_PER_STAGE,
    SAMPLED,
    UNSAMPLED,
    Workload,
)
from infra.bench.trial import Measurement
from infra.bench.verdict import SPANS_PER_JOB

#: Why a measurement could not be made: (workload, peer, round, reason).
Failure = tuple[Workload, str, int, str]

_TITLES = {
    Workload.THROUGHPUT: "throughput: a backlog through three hops, 4 partitions",
    Workload.IO: "io: a burst onto a warm peer, three stages that each wait 50 ms, one process",
    Workload.LATENCY: "latency: an even beat of jobs, from the sender to a reader of `done`",
    Workload.CRASH: "crash: kill -9 in mid-stream and restart",
    Workload.TRACING: "tracing: a burst onto warm stages, one process; CPU s per 1,000,000 jobs",
}


@dataclass(frozen=True)
class Goal:
    """A figure that handoff is held to; `value` is None if the run does not tell."""

    name: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        enough = self.least is None or self.value >= self.least
        return enough and (self.most is None or self.value <= self.most)

    @property
    def bound(self) -> str:
        """As it is read: what is asked for at least, or at most."""
        return number(self.least, 1) if self.most is None else f"at most {number(self.most, 2)}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = cells
        padded = [first.ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(line(row) for row in (headers, rule, *rows))


def number(value: float | None, digits: int = 0) -> str:
    """A figure with thousands separated, or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def rates(runs: Sequence[Measurement]) -> dict[int, float | None]:
    """jobs/s by round."""
    return {run.round: run.rate for run in runs}


def ratio(ours: Sequence[Measurement], theirs: Sequence[Measurement]) -> float | None:
    """How many times as fast, in the median of the rounds that both took part in."""
    return ratio_by_round(rates(ours), rates(theirs))


def verdict_text(runs: Sequence[Measurement]) -> str:
    """`exactly once`, or what was lost, came twice or is missing over all `runs`."""
    faults = {
        "lost" if all(r.finished for r in runs) else "not arrived in time": sum(
            r.verdict.lost for r in runs
        ),
        "twice": sum(r.verdict.duplicates for r in runs),
        "never sent": sum(r.verdict.foreign for r in runs),
        "states twice": sum(r.verdict.repeated_steps for r in runs),
        "states missing": sum(r.verdict.missing_steps for r in runs),
    }
    return ", ".join(f"{n:,} {what}" for what, n in faults.items() if n) or "exactly once"


def section(workload: Workload, measurements: Sequence[Measurement]) -> str:
    """Title and table of one workload; peers in the order in which they were first measured."""
    by_peer: dict[str, list[Measurement]] = {}
    for each in measurements:
        if each.workload is workload:
            by_peer.setdefault(each.peer, []).append(each)
    columns = {
        Workload.LATENCY: _latency_row,
        Workload.CRASH: _crash_row,
        Workload.TRACING: _tracing_row,
    }.get(workload, _rate_row)
    rows = [columns(peer, by_peer) for peer in sorted(by_peer)]
    if not rows:
        return f"{_TITLES[workload]}\n\nNo run of it succeeded.\n"
    return f"{_TITLES[workload]}\n\n{table(list(rows[0]), [list(r.values()) for r in rows])}\n"


def _common(peer: str, runs: Sequence[Measurement]) -> dict[str, str]:
    return {"peer": peer, "jobs": number(runs[0].jobs)}


def _costs(runs: Sequence[Measurement]) -> dict[str, str]:
    def each(name: str) -> str:
        spent = [per_thousand(getattr(r.cost, name), r.verdict.distinct) for r in runs]
        return number(median(spent), 2)

    return {
        "CPU s / 1,000": each("cpu_s"),
        "broker": each("broker_cpu_s"),
        "Postgres": each("postgres_cpu_s"),
        "peak MB": number(max((r.cost.peak_mb or 0.0 for r in runs), default=0.0) or None),
    }


def _rate_row(peer: str, by_peer: dict[str, list[Measurement]]) -> dict[str, str]:
    runs = by_peer[peer]
    return {
        **_common(peer, runs),
        "jobs/s (each)": " ".join(number(r.rate) for r in runs),
        "median": number(median(r.rate for r in runs)),
        "x control": number(ratio(runs, by_peer.get(CONTROL, [])), 2),
        **_costs(runs),
        "verdict": verdict_text(runs),
    }


def _latency_row(peer: str, by_peer: dict[str, list[Measurement]]) -> dict[str, str]:
    runs = by_peer[peer]
    return {
        **_common(peer, runs),
        **{
            f"{name} ms": number(median(r.latency_ms.get(name) for r in runs), 1)
            for name in ("p50", "p95", "p99", "max")
        },
        **_costs(runs),
        "verdict": verdict_text(runs),
    }


def _crash_row(peer: str, by_peer: dict[str, list[Measurement]]) -> dict[str, str]:
    runs = by_peer[peer]
    return {
        **_common(peer, runs),
        "killed at": "; ".join(" ".join(f"{at:.0%}" for at in r.killed_at) for r in runs),
        "seconds": " ".join(number(r.seconds) for r in runs),
        "verdict": verdict_text(runs),
    }


def stage_cpu(runs: Sequence[Measurement]) -> dict[int, float | None]:
    """CPU seconds of the stages per 1,000,000 jobs, by round."""
    return {run.round: per_million(run.cost.cpu_s, run.jobs) for run in runs if run.finished}


def _tracing_row(peer: str, by_peer: dict[str, list[Measurement]]) -> dict[str, str]:
    runs = by_peer[peer]
    cpu, without = stage_cpu(runs), stage_cpu(by_peer.get(UNSAMPLED, []))
    exports = [r.export for r in runs if r.export is not None]
    tracer = median(per_million(e.cpu_s, e.spans) for e in exports)
    return {
        **_common(peer, runs),
        "jobs/s (each)": " ".join(number(r.rate) for r in runs),
        "stages' CPU s (each)": " ".join(number(each, 1) for each in cpu.values()),
        "median": number(median(cpu.values()), 1),
        "x unsampled (each)": " ".join(number(x, 3) for x in ratios_by_round(cpu, without)) or "-",
        "x": number(ratio_by_round(cpu, without), 3),
        "tracer's CPU s": number(None if tracer is None else tracer * SPANS_PER_JOB, 1),
        "spans/s": number(median(e.rate for e in exports)),
        "verdict": verdict_text(runs),
    }


def goals(measurements: Sequence[Measurement]) -> list[Goal]:
    """What handoff is held to, as far as this run tells."""

    def runs(workload: Workload, peer: str) -> list[Measurement]:
        return [m for m in measurements if m.workload is workload and m.peer == peer]

    # Each side at its best number of processes; the table shows both.
    fast = max(
        (runs(Workload.THROUGHPUT, ours) for ours in (OURS, OURS_PER_STAGE)),
        key=lambda found: median(m.rate for m in found) or 0.0,
    )
    sampled = runs(Workload.TRACING, SAMPLED)
    return [
        Goal("throughput / control", ratio(fast, runs(Workload.THROUGHPUT, CONTROL)), 0.5),
        Goal("throughput / plain Faust", ratio(fast, runs(Workload.THROUGHPUT, FAUST)), 8.0),
        Goal("io, jobs/s", median(m.rate for m in runs(Workload.IO, OURS)), 2_000.0),
        Goal(
            "stages' CPU, every job sampled / none",
            ratio_by_round(stage_cpu(sampled), stage_cpu(runs(Workload.TRACING, UNSAMPLED))),
            most=1.07,
        ),
        Goal("tracer, spans/s", median(m.export.rate for m in sampled if m.export), 10_000.0),
    ]


def sound(measurements: Sequence[Measurement], failures: Sequence[Failure]) -> bool:
    """All measurements could be made, and handoff was exactly once in each of its own."""
    return not failures and all(
        m.finished and m.verdict.exactly_once
        for m in measurements
        if m.peer in (OURS, OURS_PER_STAGE, UNSAMPLED, SAMPLED)
    )


def goal_lines(found: Sequence[Goal]) -> str:
    """One line per goal that the run tells of."""
    words = {True: "met", False: "MISSED"}
    lines = [
        f"{goal.name}: {number(goal.value, 2)}, goal {goal.bound}: {words[goal.met]}"
        for goal in found
        if goal.met is not None
    ]
    return "\n".join(lines)
