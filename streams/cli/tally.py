"""What the demo counted, and whether it adds up. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL of the worker; `in_flight` jobs were accepted and not finished at that time."""

    pid: int
    finished: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class DeskCount:
    """The desk's own record: every call that reached it, every effect that it carried out.

    `doubles` are effects beyond the first for one idempotency key.
    """

    calls: int
    effects: int
    doubles: int


@dataclass(frozen=True, slots=True)
class Tally:
    """One run of the demo."""

    submitted: int
    done: int
    failed: int
    seconds: float
    p50_s: float | None
    p95_s: float | None
    desk: DeskCount
    #: Jobs whose result says that something was filed for them.
    acting: int
    #: Effects of the ledger, with their outcome known and not known.
    settled: int
    unsettled: int
    #: Steps that are in job-state more than once.
    doubled_steps: int
    skipped: int
    kills: tuple[Kill, ...] = ()
    kills_wanted: int = 0
    stalled: bool = False
    #: The audit's verdict in one line, and how much it found.
    audit: str = ""
    audit_findings: int = 0

    @property
    def doubles(self) -> int:
        return self.doubled_steps + self.desk.doubles

    @property
    def jobs_per_s(self) -> float:
        return (self.done + self.failed) / self.seconds if self.seconds > 0 else 0.0

    def faults(self) -> list[str]:
        """Why it does not add up; empty when it does."""
        found = []
        missing = self.submitted - self.done - self.failed
        if missing:
            what = f"{missing:,} jobs are not finished" if missing > 0 else "there are more jobs"
            found.append(
                f"{what}: {self.submitted:,} submitted, {self.done:,} done, "
                f"{self.failed:,} dead-lettered."
            )
        if self.stalled:
            found.append("Nothing moved any more.")
        if self.doubled_steps:
            found.append(f"{self.doubled_steps:,} steps were committed more than once.")
        if self.desk.doubles:
            found.append(f"The desk carried out {self.desk.doubles:,} effects twice.")
        if self.desk.effects != self.acting:
            found.append(
                f"The desk carried out {self.desk.effects:,} effects for {self.acting:,} jobs."
            )
        if self.settled != self.acting:
            found.append(f"The ledger has {self.settled:,} effects for {self.acting:,} jobs.")
        if self.unsettled:
            found.append(f"{self.unsettled:,} effects are not settled: handoff effects ls.")
        if self.audit_findings:
            found.append(f"The audit found something: --keep, then handoff audit. {self.audit}")
        found += self._kill_faults()
        return found

    def _kill_faults(self) -> list[str]:
        idle = sum(kill.in_flight == 0 for kill in self.kills)
        found = []
        if len(self.kills) < self.kills_wanted:
            found.append(
                f"Only {len(self.kills)} of {self.kills_wanted} kills took place: the work was "
                "done too soon. Submit more with --count."
            )
        if idle:
            found.append(f"{idle} kills met no work in flight. Submit more with --count.")
        return found


def kill_marks(kills: int) -> list[float]:
    """At which fractions of finished jobs the worker is killed: spread from 15 % to 75 %."""
    if kills == 1:
        return [0.4]
    return [0.15 + 0.6 * n / (kills - 1) for n in range(kills)]
