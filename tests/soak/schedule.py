"""What happens when: a pure function of the seed, so that a run that failed can be run again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. While one lasts no other takes hold of the same resources."""

    resources: tuple[str, ...]
    #: Shortest and longest duration in seconds.
    lasts_s: tuple[float, float]


_KAFKA, _POSTGRES, _DESK = ("kafka",), ("postgres",), ("desk",)
_ONE, _ALL = ("slot 1",), ("slot 1", "slot 2")

#: By name; `faults` has a function of the same name for each. Slot 0 is never hurt directly: its
#: process is watched for leaks. Session time-out: 6 s; transactions': 10 s.
KINDS: Final = {
    "worker_killed": Kind(_ONE, (0, 0)),
    "worker_terminated": Kind(_ONE, (0, 0)),
    "worker_frozen": Kind(_ONE, (1, 4)),
    "worker_frozen_past_its_session": Kind(_ONE, (12, 20)),
    "one_to_three_to_one": Kind(_ALL, (24, 36)),
    "kafka_restarted": Kind(_KAFKA, (0, 5)),
    "kafka_killed": Kind(_KAFKA, (0, 5)),
    "kafka_frozen": Kind(_KAFKA, (1, 5)),
    "kafka_frozen_past_sessions": Kind(_KAFKA, (15, 30)),
    "kafka_away": Kind(_KAFKA, (2, 15)),
    "kafka_connections_cut": Kind(_KAFKA, (0, 0)),
    "kafka_connections_half_open": Kind(_KAFKA, (0, 0)),
    "kafka_network_frozen": Kind(_KAFKA, (2, 12)),
    "kafka_network_slow": Kind(_KAFKA, (5, 15)),
    "commit_reply_lost": Kind(_KAFKA, (10, 10)),
    "commit_request_late": Kind(_KAFKA, (0.5, 4)),
    "postgres_restarted": Kind(_POSTGRES, (0, 5)),
    "postgres_killed": Kind(_POSTGRES, (0, 5)),
    "postgres_backend_killed": Kind(_POSTGRES, (0, 0)),
    "postgres_frozen": Kind(_POSTGRES, (2, 15)),
    "postgres_away": Kind(_POSTGRES, (2, 15)),
    "postgres_connections_cut": Kind(_POSTGRES, (0, 0)),
    "postgres_connections_half_open": Kind(_POSTGRES, (0, 0)),
    "postgres_network_slow": Kind(_POSTGRES, (5, 15)),
    "desk_answers_lost": Kind(_DESK, (0.2, 1)),
    "desk_refuses": Kind(_DESK, (1, 3)),
}

#: What a resource gets after a fault before the next one: a service has to come up.
_REST_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` on, counted from the start of the load, for `lasts_s`."""

    at_s: float
    kind: str
    lasts_s: float


def schedule(
    seed: int,
    seconds: float,
    gap_s: tuple[float, float] = (5.0, 20.0),
    longest_s: float = float("inf"),
) -> list[Fault]:
    """The faults of a run, in order. Each kind comes once before any comes again, unless what it
    would hurt is busy: then the next that can takes its turn."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    free_at: dict[str, float] = {}
    waiting: list[str] = []
    at_s = chance.uniform(*gap_s)
    while at_s < seconds:
        if len(waiting) < len(KINDS):
            waiting += chance.sample(sorted(KINDS), len(KINDS))
        kind = next((k for k in waiting if _can(k, at_s, free_at)), None)
        if kind is not None:
            waiting.remove(kind)
            lasts_s = min(chance.uniform(*KINDS[kind].lasts_s), longest_s)
            faults.append(Fault(round(at_s, 2), kind, round(lasts_s, 2)))
            for resource in KINDS[kind].resources:
                free_at[resource] = at_s + lasts_s + _REST_S
        at_s += chance.uniform(*gap_s)
    return faults


def _can(kind: str, at_s: float, free_at: dict[str, float]) -> bool:
    return all(free_at.get(r, 0.0) <= at_s for r in KINDS[kind].resources)
