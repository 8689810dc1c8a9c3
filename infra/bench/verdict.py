"""Exactly once or not: what was sent against what the topics hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

#: Steps that a finished job has taken: one per stage.
STEPS_PER_JOB: Final = 3
#: A span for each step, and one for the submission.
SPANS_PER_JOB: Final = STEPS_PER_JOB + 1

#: (key, seq) of a `job-state` record.
Step = tuple[bytes, int]


@dataclass(frozen=True)
class Verdict:
    """How often each job arrived, as a read-committed reader sees it."""

    #: Jobs sent.
    sent: int
    #: Jobs sent that arrived on `done` at least once.
    distinct: int
    #: Records on `done` beyond the first of each job.
    duplicates: int
    #: Jobs sent that are not on `done`.
    lost: int
    #: Jobs on `done` that nobody sent.
    foreign: int
    #: Records on `job-state` beyond the first of each (traceId, seq).
    repeated_steps: int
    #: Steps of the jobs sent that `job-state` does not have.
    missing_steps: int

    @property
    def exactly_once(self) -> bool:
        return not (
            self.duplicates
            or self.lost
            or self.foreign
            or self.repeated_steps
            or self.missing_steps
        )


def judge(sent: Set[bytes], done: Mapping[bytes, int], steps: Mapping[Step, int]) -> Verdict:
    """Compare the keys sent with the counts of keys on `done` and of steps on `job-state`."""
    distinct = sum(key in done for key in sent)
    return Verdict(
        sent=len(sent),
        distinct=distinct,
        duplicates=sum(done.values()) - len(done),
        lost=len(sent) - distinct,
        foreign=len(done) - distinct,
        repeated_steps=sum(steps.values()) - len(steps),
        missing_steps=sum(
            (key, seq) not in steps for key in sent for seq in range(1, STEPS_PER_JOB + 1)
        ),
    )
