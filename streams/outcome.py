"""What a handler may return: a closed union of frozen values.

A pydantic model stands for "hand it to the stage's `emits`". A handler never publishes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import BaseModel


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


Outcome = Emit | Done | Retry | Reject
