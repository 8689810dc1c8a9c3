"""One cause why a job does not move, and its names on the wire of `-o json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """What `-o json` calls the answer."""

    DONE = "done"
    CANCELLED = "cancelled"
    #: Failed, and there is no letter.
    FAILED = "failed"
    NO_WORKER = "no_worker"
    PAUSED = "paused"
    BACKOFF = "backoff"
    #: Its stage's limits let others go first.
    LIMITED = "limited"
    IN_WORK = "in_work"
    LAG = "lag"
    IN_DOUBT = "in_doubt"
    DEAD_LETTER = "dead_letter"
    TIMER = "timer"
    #: It forked, and waits for its branches.
    BRANCHES = "branches"
    #: It is in a run, or waits for a signal.
    RUN = "run"
    #: The log says that it was handed on, and what was handed on is not there.
    LOST = "lost"
    NOT_THERE = "not_there"


@dataclass(frozen=True, slots=True)
class Cause:
    """What one cause has to say: see `streams.why.answer.Answer`."""

    code: Code
    stage: str
    why: str
    do: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
