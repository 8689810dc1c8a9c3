"""What a handler may return: a closed union of frozen values.

A pydantic model stands for "hand it to the stage's `emits`". A handler never publishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

from pydantic import BaseModel

from streams.errors import BadRecord

#: What one fork may have; a join streams them, a transaction holds them.
MAX_BRANCHES: Final = 10_000
#: Of all payloads of one fork together: they wait in memory for their transaction.
MAX_FORK_BYTES: Final = 128 * 2**20

#: The longest that anything waits for: ten years.
MAX_WAIT: Final = timedelta(days=3_652)

#: What a join does about a branch that fails, or has not come when the time is up.
OnMissing = Literal["wait", "fail", "errors"]


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand `model` to the stage or sink `to`, which must be among the stage's declared `emits`."""

    to: str
    model: BaseModel


@dataclass(frozen=True, slots=True)
class Done:
    """The job is finished; `result` is kept as the last state's data."""

    result: BaseModel | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the handler again, `after` this long; the attempt counts against the stage's policy.

    A wait beyond the policy's `in_place` is a committed step: the job is `waiting` until its timer
    is due, and a later record with its key may run meanwhile.
    """

    after: timedelta = field(default=timedelta(0))
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """The job fails now: its record goes to the stage's dead-letter topic, complete."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Split the job: each of `children` becomes a job of its own, `<traceId>/<n>`, and the stage
    `join` gets all their results, in order, once the last has come (`streams.joins.Joined`).

    A child is a model for the stage's only `emits`, or an `Emit`; 0 to 10,000 of them, and what it
    ends with (`Done(result)`, or what it hands to a sink) is its result. The job waits meanwhile.

    `on_missing` tells what a branch that fails does: with "wait" the join waits until its dead
    letter is redriven, with "fail" the job fails at once, "errors" joins with the error in the
    result's place. Past `timeout` the job fails, or with "errors" is joined without what is
    missing. Raises `BadRecord` for too many children; more than 128 MiB of payloads in one fork are
    a dead letter.
    """

    children: Sequence[BaseModel | Emit]
    join: str
    timeout: timedelta | None = None
    on_missing: OnMissing = "wait"

    def __post_init__(self) -> None:
        if len(self.children) > MAX_BRANCHES:
            raise BadRecord(
                f"A fork into {len(self.children):,} children; {MAX_BRANCHES:,} are the most. "
                "Fork into groups whose stage forks again."
            )


@dataclass(frozen=True, slots=True)
class Wait:
    """Run the handler again, with `job.signal`, once the signal has been sent to the job
    (`handoff signal ID NAME JSON`), or `timeout` has passed: then `job.signal.timed_out`.

    The stage must declare it in its `waits`. The job waits as a committed step, in no worker's
    memory; a signal that came before it waited counts.
    """

    signal: str
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """What an orchestrator's stage does with a job: begin its run (`streams.orchestration`)."""

    model: BaseModel


Outcome = Emit | Done | Fork | Retry | Reject | Wait | Begin
