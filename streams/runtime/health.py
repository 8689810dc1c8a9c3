"""What a worker says of itself at `/livez` (would a restart help?) and `/readyz` (decision 9).

*Live*: the event loop turns, polling threads step, agents run, finished work gets committed. What
waits for Kafka or Postgres, known to be away, is excused: a restart mends neither. *Ready*: live,
started, a member of its groups, no stage paused, Kafka and Postgres answer. Neither looks at lag.

Judged in the thread that asks, from facts that others leave behind, so that a blocked event
loop cannot hide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Polls(Protocol):
    """A polling thread, as others see it. Times are `time.monotonic()`."""

    stepped_at: float
    #: Whether it has an assignment, be it an empty one (a standby).
    assigned: bool

    @property
    def alive(self) -> bool: ...


class Commits(Protocol):
    """A commit thread, as others see it."""

    #: Since when the batch in its hands is being committed; None when there is none.
    busy_since: float | None

    @property
    def alive(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What there is to know of one agent; `polls` is None before it has started."""

    polls: Polls | None = None
    commits: Commits | None = None
    paused: str | None = None


@dataclass(slots=True)
class Dependency:
    """Kafka or Postgres. `why` says what is wrong, None once it has answered."""

    name: str
    why: str | None = "has not been asked yet"
    #: When it was last seen away, monotonic.
    away_at: float = 0.0


@dataclass(slots=True)
class Vitals:
    """Facts about one worker, written by their owners and read by any thread."""

    worker: str
    agents: Mapping[str, Callable[[], AgentFacts]]
    #: When the event loop turned last, monotonic.
    turned_at: float = field(default_factory=time.monotonic)
    #: Names of the agents whose bodies run now.
    running: set[str] = field(default_factory=set)
    started: bool = False
    stopping: bool = False
    kafka: Dependency = field(default_factory=lambda: Dependency("Kafka"))
    postgres: Dependency = field(default_factory=lambda: Dependency("Postgres"))

    @property
    def dependencies(self) -> tuple[Dependency, Dependency]:
        return self.kafka, self.postgres


@dataclass(frozen=True, slots=True)
class Report:
    """Sentences that say what is wrong, of the worker and of each agent; none: all is well."""

    worker: str
    why: tuple[str, ...]
    agents: Mapping[str, tuple[str, ...]]

    @property
    def ok(self) -> bool:
        return not self.why and not any(self.agents.values())

    def json(self) -> dict[str, Any]:
        agents = {name: {"ok": not why, "why": why} for name, why in self.agents.items()}
        return {"ok": self.ok, "worker": self.worker, "why": self.why, "agents": agents}


class Health:
    """Judges `vitals`. What shows no progress for `stall_s` counts as stuck."""

    def __init__(
        self, vitals: Vitals, stall_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._vitals, self._stall_s, self._clock = vitals, stall_s, clock

    def live(self) -> Report:
        v, now = self._vitals, self._clock()
        return Report(
            v.worker,
            tuple(self._loop_faults(now)),
            {name: tuple(self._life_faults(name, ask(), now)) for name, ask in v.agents.items()},
        )

    def ready(self) -> Report:
        v, now = self._vitals, self._clock()
        return Report(
            v.worker,
            (*self._loop_faults(now), *self._worker_faults()),
            {
                name: (*self._life_faults(name, ask(), now), *_start_faults(ask()))
                for name, ask in v.agents.items()
            },
        )

    def _loop_faults(self, now: float) -> Iterator[str]:
        still_s = now - self._vitals.turned_at
        if still_s > self._stall_s:
            yield f"The event loop has not turned for {still_s:.1f} s: a handler blocks it."

    def _life_faults(self, name: str, facts: AgentFacts, now: float) -> Iterator[str]:
        v = self._vitals
        if not v.started or v.stopping:
            return
        if name not in v.running:
            yield "Its agent does not run."
        # As long as a service is away, and for a while after, threads may stand.
        excused_at = max(d.away_at for d in v.dependencies)
        if (polls := facts.polls) is not None:
            still_s = now - max(polls.stepped_at, excused_at)
            if not polls.alive:
                yield "Its polling thread has ended."
            elif still_s > self._stall_s:
                yield f"Its polling thread has not polled for {still_s:.1f} s."
        if (commits := facts.commits) is not None:
            busy_since = commits.busy_since
            if not commits.alive:
                yield "Its commit thread has ended."
            elif busy_since is not None:
                waits_s = now - max(busy_since, excused_at)
                if waits_s > self._stall_s:
                    yield f"Finished work waits for its commit for {waits_s:.1f} s; Kafka answers."

    def _worker_faults(self) -> Iterator[str]:
        v = self._vitals
        if v.stopping:
            yield "The worker is stopping."
        elif not v.started:
            yield "The worker has not started yet."
        for dependency in v.dependencies:
            if dependency.why is not None:
                yield f"{dependency.name}: {dependency.why}"


def _start_faults(facts: AgentFacts) -> Iterator[str]:
    if facts.polls is None or not facts.polls.assigned:
        yield "Its group has not given it an assignment yet."
    if facts.paused is not None:
        yield f"It is paused: {facts.paused}"
