"""Which records are to be replayed: values, and how a person writes them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from schemas.state import Status
from streams.deadletter.choice import Choice
from streams.errors import BadSetup


@dataclass(frozen=True, slots=True)
class OfTrace:
    """All records that the steps of one job consumed; the id may be its beginning."""

    job: str


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
#: `2h`, `7d` or ISO 8601 → a moment.
When = Callable[[str], datetime]

_JOB_FIELDS = ("status", "stage", "flow", "since")


def parse_bound(text: str | None, when: When) -> Bound | None:
    """Digits are an offset, anything else a time. Raises `BadSetup`."""
    if text is None:
        return None
    if text.isdigit():
        return Bound(offset=int(text))
    return Bound(at_ms=int(when(text).timestamp() * 1000))


def parse_jobs(text: str, when: When) -> OfJobs:
    """`status=failed stage=enrich since=1h`. Raises `BadSetup` that says what is wrong."""
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise BadSetup(f"--filter {text!r} cannot be read: {e}.") from None
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _JOB_FIELDS or not value:
            raise BadSetup(f"--filter takes {'=, '.join(_JOB_FIELDS)}=; {word!r} is none of them.")
        if name in found:
            raise BadSetup(f"--filter names {name} twice.")
        found[name] = value
    if not found:
        raise BadSetup("--filter is empty: it would mean every job there is.")
    status = found.get("status")
    if status is not None and status not in set(Status):
        raise BadSetup(f"--filter status={status}: a status is one of {', '.join(Status)}.")
    return OfJobs(
        status=None if status is None else Status(status),
        stage=found.get("stage"),
        flow=found.get("flow"),
        since=when(found["since"]) if "since" in found else None,
    )
