"""What a worker measures (decision 12): committed steps where they are projected, lag where it
reads, doubts where there is a database to ask.

The hot path adds nothing for a record: what was committed is counted by the projector, as exactly
once as it projects (a batch whose outcome was unknown may be missing).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass, field
from typing import Final

import orjson

from schemas.state import Status
from streams.config import Settings
from streams.errors import BadWorld
from streams.limits.gate import Gate
from streams.postgres import Pool, load_queries, pooled
from streams.runtime.ownership import Ownership
from streams.runtime.records import now_us
from streams.state.fold import Step
from streams.tracing import conventions as c
from streams.tracing.metrics import Attributes, Metrics, Spec

_SQL: Final = load_queries("streams.runtime")
_ASK_S: Final = 2.0

_DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
STEPS: Final = Spec(c.CONSUMED_MESSAGES, "{message}", "Records whose step is committed.", adds=True)
DURATION: Final = Spec(
    c.PROCESS_DURATION, "s", "The last run of the handler, by committed step.", _DURATIONS
)
QUEUED: Final = Spec(
    "handoff.queue.duration", "s", "From a record's timestamp to its delivery.", _DURATIONS
)
JOB_DURATION: Final = Spec(
    "handoff.job.duration", "s", "From a job's birth to its end.", (*_DURATIONS, 3600, 86_400)
)
ATTEMPTS: Final = Spec(
    "handoff.attempts", "{attempt}", "Runs that a step took, waits for timers included.",
    (1, 2, 3, 5, 10, 20),
)  # fmt: skip
DEAD_LETTERS: Final = Spec("handoff.dead_letters", "{message}", "Records dead-lettered.", adds=True)
DELAY: Final = Spec(
    "handoff.projection.delay", "s", "From a step's commit to its row in Postgres.", _DURATIONS
)
LAG: Final = Spec("handoff.lag.records", "{message}", "Offsets not read, and records in work.")
LAG_TIME: Final = Spec(
    "handoff.lag.time", "s", "Age of the newest record read, where there is lag; otherwise 0."
)
IN_DOUBT: Final = Spec("handoff.effects.in_doubt", "{effect}", "Effects that a person must decide.")
LIMITED: Final = Spec("handoff.limit.waiting", "{message}", "Records that wait for a limit.")
SENT_AWAY: Final = Spec(
    "handoff.limit.sent_away", "{message}", "Waits for a limit that became timers.", adds=True
)
MISSED: Final = Spec(
    "handoff.limit.missed", "{message}", "Reserved starts that came too late.", adds=True
)


@dataclass(slots=True)
class _Group:
    """Steps of one stage in a batch."""

    steps: int = 0
    durations: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)


def count_steps(metrics: Metrics, steps: Sequence[Step], at_us: int) -> None:
    """Add steps that were projected at `at_us` (epoch)."""
    groups: dict[tuple[str, str, str], _Group] = defaultdict(_Group)
    letters: dict[tuple[str, str, str], int] = defaultdict(int)
    ended: dict[tuple[str, str], list[float]] = defaultdict(list)
    for step in steps:
        kind = _error_kind(step)
        group = groups[step.flow, step.consumed_topic or "", kind]
        group.steps += 1
        if kind:
            letters[step.flow, step.consumed_topic or "", kind] += 1
        if step.status != Status.WAITING:
            group.attempts.append(step.attempts)
        if step.finished_us is None or step.started_us is None or step.born_us is None:
            continue
        group.durations.append(max(0, step.finished_us - step.started_us) / 1e6)
        if step.polled_us is not None and step.produced_us is not None:
            group.queued.append(max(0, step.polled_us - step.produced_us) / 1e6)
        if Status(step.status).terminal:
            ended[step.flow, step.status].append(max(0, step.finished_us - step.born_us) / 1e6)
    for (flow, topic, kind), group in groups.items():
        attributes = _attributes(flow, topic, kind)
        metrics.add(STEPS, attributes, group.steps)
        metrics.observe(DURATION, attributes, group.durations)
        metrics.observe(QUEUED, attributes, group.queued)
        metrics.observe(ATTEMPTS, attributes, group.attempts)
    for (flow, topic, kind), count in letters.items():
        metrics.add(DEAD_LETTERS, _attributes(flow, topic, kind), count)
    for (flow, status), durations in ended.items():
        metrics.observe(JOB_DURATION, ((c.FLOW, flow), (c.STATUS, status)), durations)
    metrics.observe(DELAY, (), [max(0, at_us - step.committed_us) / 1e6 for step in steps])


def _error_kind(step: Step) -> str:
    """Of a dead letter, for `error.type`; empty for every other step."""
    if step.status != Status.FAILED:
        return ""
    return str(orjson.loads(step.error)["kind"]) if step.error else "unknown"


def _attributes(flow: str, topic: str, error: str) -> Attributes:
    found = (
        (c.SYSTEM, c.KAFKA),
        (c.OPERATION_NAME, c.PROCESS),
        (c.DESTINATION, topic),
        (c.CONSUMER_GROUP, topic),
        (c.FLOW, flow),
    )
    return (*found, (c.ERROR_TYPE, error)) if error else found


def lag(ownership: Ownership) -> Iterable[tuple[Spec, Attributes, float]]:
    """A gauge: what lies before the reader of each of its partitions, and what is in work.

    In offsets, so aborted records and markers of transactions count until they are passed.
    """
    with ownership.lock:
        facts = [
            (t.topic, t.partition, t.behind + t.unfinished, t.newest_us)
            for t in ownership.trackers.values()
        ]
    for topic, partition, records, newest_us in facts:
        place = ((c.DESTINATION, topic), (c.PARTITION, str(partition)))
        attributes = ((c.CONSUMER_GROUP, topic), *place)
        age_s = max(0, now_us() - newest_us) / 1e6 if records and newest_us else 0.0
        yield LAG, attributes, records
        yield LAG_TIME, attributes, age_s


def limits(topic: str, gate: Gate) -> Iterable[tuple[Spec, Attributes, float]]:
    """A gauge: what a stage's limits do to its records."""
    attributes = ((c.CONSUMER_GROUP, topic), (c.DESTINATION, topic))
    yield LIMITED, attributes, gate.waiting
    yield SENT_AWAY, attributes, gate.sent_away
    yield MISSED, attributes, gate.missed


class Doubts:
    """A gauge: the effects in doubt, asked of Postgres at each collection; nothing when it is
    away, or when the event loop stands."""

    def __init__(self, pool: Pool, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._pool, self._settings, self._loop = pool, settings, loop

    def __call__(self) -> Iterable[tuple[Spec, Attributes, float]]:
        asked = asyncio.run_coroutine_threadsafe(self._count(), self._loop)
        try:
            return [(IN_DOUBT, (), asked.result(_ASK_S))]
        except (NoAnswer, CancelledError, BadWorld):
            asked.cancel()
            return []

    async def _count(self) -> int:
        async with pooled(self._pool, self._settings, deadline_s=_ASK_S) as conn:
            row = await (await conn.execute(_SQL["count_in_doubt"])).fetchone()
        assert row is not None, "an aggregate has one row"
        return int(row["effects"])
