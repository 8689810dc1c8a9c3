"""Which records are to be replayed: values. How they are written: `streams.cli.replay_choice`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from schemas.state import Status
from streams.deadletter.choice import Choice


@dataclass(frozen=True, slots=True)
class OfTrace:
    """All records that the steps of one job consumed, and those of its children, all the way down;
    the id may be its beginning."""

    job: str
    children: bool = True


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a range begins or ends: an offset of each partition, or a time (epoch ms)."""

    offset: int | None = None
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OfTopic:
    """A stage's topic from `start` to before `end`; as it stands now where they are None."""

    topic: str
    start: Bound | None = None
    end: Bound | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class OfJobs:
    """All records of the jobs that fit, by the projection; what is None says nothing."""

    status: Status | None = None
    stage: str | None = None
    flow: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class OfLetters:
    """What the open dead letters hold that fit."""

    choice: Choice = field(default_factory=Choice)


@dataclass(frozen=True, slots=True)
class OfFile:
    """A bundle of `handoff export`."""

    path: Path


Selection = OfTrace | OfTopic | OfJobs | OfLetters | OfFile
