"""What an audit found, in figures, examples and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from streams.audit.facts import Facts, Row
from streams.audit.rules import HORIZON, RULES, Bounds, Rule, Severity
from streams.audit.sources import Catalogue
from streams.audit.wire import unpack

#: Columns of the query `counts`.
_COUNTS: Final = (
    "records",
    "steps",
    "steps_from_history",
    "letters",
    "foreign_letters",
    "timers",
    "branch_ends",
    "projected_jobs",
    "effects",
    "target_effects",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `step`, `topic`, `partition` and `offset` as far as it has a place; the place is
    that of the record which shows it."""

    rule: str
    job: str | None
    step: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    detail: str

    @property
    def place(self) -> str:
        return "" if self.topic is None else f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs by where they stand; `accepted` is all of them. `new` have no step yet, `lost` never
    will."""

    accepted: int
    done: int
    failed: int
    cancelled: int
    waiting: int
    running: int
    new: int
    lost: int

    @property
    def in_flight(self) -> int:
        return self.waiting + self.running + self.new


@dataclass(frozen=True, slots=True)
class Seen:
    """From where on a partition was seen. `low` is its first offset, `start` where reading began,
    `first_ms` the time of the first record there."""

    topic: str
    partition: int
    low: int
    start: int
    first_ms: int | None


class Verdict:
    """Figures are taken once, findings are read from the facts when asked for."""

    def __init__(self, facts: Facts, bounds: Bounds, catalogue: Catalogue) -> None:
        self._facts = facts
        self.bounds = bounds
        self.flows = sorted({s.flow for s in catalogue.sources if s.flow})
        found = self._by("findings_by_rule")
        #: Rules that found something, in the order of `RULES`, and how much.
        self.found: dict[Rule, int] = {r: found[r.name] for r in RULES if r.name in found}
        self.jobs = self._jobs()
        (counts,) = facts.ask("counts")
        self.counts: dict[str, int] = dict(zip(_COUNTS, counts, strict=True))
        self.counts["records_in_flight"] = facts.number("records_in_flight")
        self.counts["steps_not_projected"] = facts.number("not_projected", {"state": bounds.state})
        self.effects: dict[str, int] = self._by("effects_by_status")
        #: Effects of names that no target's record has, if there is one.
        self.not_compared: dict[str, int] = self._by("effects_not_compared")
        self.horizon: dict[str, int] = self._by("horizon")

    @property
    def clean(self) -> bool:
        return not self.found

    @property
    def broken(self) -> int:
        """Findings that say that a promise is broken."""
        return sum(n for r, n in self.found.items() if r.severity is Severity.BROKEN)

    def line(self) -> str:
        """The verdict in one line."""
        jobs = self.jobs
        head = (
            f"audit: {jobs.accepted:,} jobs (done {jobs.done:,}, failed {jobs.failed:,}, "
            f"{f'cancelled {jobs.cancelled:,}, ' if jobs.cancelled else ''}in flight "
            f"{jobs.in_flight:,}), {self.counts['records']:,} hand-offs, "
            f"{self.counts['steps']:,} steps, {self.counts['effects']:,} effects: "
        )
        if self.clean:
            return f"{head}nothing lost, nothing twice, nothing without a cause"
        told = ", ".join(f"{rule.name} {n:,}" for rule, n in self.found.items())
        return f"{head}{told}"

    def horizon_lines(self) -> list[str]:
        """What could not be judged any more, in sentences; empty when all was seen."""
        lines = [f"{self.horizon[what]:,} {HORIZON[what]}" for what in sorted(self.horizon)]
        if n := self.counts["steps_from_history"]:
            lines.append(f"{n:,} steps were taken from job_history: job-state has lost them")
        for name, count in self.not_compared.items():
            lines.append(f"{count:,} effects {name} were not compared: no target's record has them")
        return lines

    def findings(self, rule: str | None = None, limit: int = -1) -> Iterator[Finding]:
        """All findings, or those of one rule, in the order of jobs."""
        for row in self._facts.ask("findings", {"rule": rule, "limit": limit}):
            yield _finding(row)

    def seen(self) -> Iterator[Seen]:
        """From where on each partition was seen."""
        return (Seen(*row) for row in self._facts.ask("topics_seen"))

    def summary(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "clean": self.clean,
            "flows": self.flows,
            "jobs": {**asdict(self.jobs), "in_flight": self.jobs.in_flight},
            "counts": self.counts,
            "records": {t: n for t, _, n in self._facts.ask("records_by_topic")},
            "effects": self.effects,
            "effects_not_compared": self.not_compared,
            "found": {rule.name: n for rule, n in self.found.items()},
            "horizon": self.horizon,
        }

    def _by(self, query: str) -> dict[str, int]:
        return dict(self._facts.ask(query))

    def _jobs(self) -> Jobs:
        by = self._by("jobs_by_status")
        new = self._facts.number("jobs_waiting_for_first_step")
        lost = self._facts.number("jobs_lost_at_once")
        return Jobs(
            accepted=sum(by.values()) + new + lost,
            done=by.get("done", 0),
            failed=by.get("failed", 0),
            cancelled=by.get("cancelled", 0),
            waiting=by.get("waiting", 0),
            running=by.get("running", 0),
            new=new,
            lost=lost,
        )


def _finding(row: Row) -> Finding:
    rule, job, seq, topic, part, at, detail = row
    return Finding(rule, _text(job), seq, topic, part, at, detail)


def _text(job: bytes | None) -> str | None:
    if job is None:
        return None
    try:
        return unpack(job)
    except UnicodeDecodeError:
        return job.decode(errors="backslashreplace")
