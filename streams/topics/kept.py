"""From when on the jobs of a flow can be replayed whole: what its topics still keep.

A replay reads what a stage consumed from the stage's topic, and what came of it from job-state.
Retention (and truncation by hand) takes the front of a partition, compaction takes older steps of a
job from anywhere. `job_history` in Postgres keeps every step, but not what the stages consumed.

Times are those of the records, by the clocks of their writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from streams.config import Settings
from streams.errors import BadSetup
from streams.flow import Flow
from streams.kafka import (
    AdminClient,
    TopicFacts,
    admin_client,
    describe_topics,
    end_offsets,
    first_records,
    low_watermarks,
    topic_config,
)

_POLICY: Final = "cleanup.policy"
_RETENTION: Final = "retention.ms"
_COMPACTION_LAG: Final = "min.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class KeptPart:
    """One partition: offsets from `low` to before `end` are there, as far as compaction left them.

    `first` is the first of them that a reader meets, written at `first_at`; None: there is none.
    """

    partition: int
    low: int
    end: int
    first: int | None
    first_at: datetime | None


@dataclass(frozen=True, slots=True)
class Kept:
    """One topic. `retention` and `compaction_lag` are None where that does not take its records:
    not at all, or not by age."""

    topic: str
    #: The stage that consumes it; None: it is job-state.
    stage: str | None
    deletes: bool
    compacts: bool
    retention: timedelta | None
    compaction_lag: timedelta | None
    parts: tuple[KeptPart, ...]

    @property
    def removed(self) -> int:
        """Offsets at the front that are gone."""
        return sum(part.low for part in self.parts)

    @property
    def first_at(self) -> datetime | None:
        """When the oldest record that is left was written."""
        return min((p.first_at for p in self.parts if p.first_at is not None), default=None)

    def whole_since(self, now: datetime) -> datetime | None:
        """From when on nothing is missing; None: from the beginning."""
        bounds = [p.first_at or now for p in self.parts if p.low > 0]
        if self.compacts and any(_was_compacted(p, self.settled(now)) for p in self.parts):
            bounds.append(self.settled(now))
        return max(bounds, default=None)

    def settled(self, now: datetime) -> datetime:
        """What was written before is old enough to be compacted."""
        return now - (self.compaction_lag or timedelta())


def _was_compacted(part: KeptPart, settled: datetime) -> bool:
    """Whether it may have been: unless nothing of it is, or ever was, old enough."""
    if part.end == 0:
        return False
    return part.first != part.low or part.first_at is None or part.first_at < settled


@dataclass(frozen=True, slots=True)
class Horizon:
    """What the topics of a flow keep, seen at `at`; job-state is the last of `topics`."""

    flow: str
    at: datetime
    topics: tuple[Kept, ...]

    @property
    def whole_since(self) -> datetime | None:
        """Jobs that were submitted from then on can be replayed whole; None: all of them."""
        found = (kept.whole_since(self.at) for kept in self.topics)
        return max((x for x in found if x is not None), default=None)

    @property
    def limits(self) -> tuple[str, ...]:
        """The topics that set it."""
        since = self.whole_since
        if since is None:
            return ()
        return tuple(k.topic for k in self.topics if k.whole_since(self.at) == since)

    def covers(self, born_at: datetime) -> bool:
        """Whether a job that was submitted then can be replayed whole."""
        since = self.whole_since
        return since is None or born_at >= since

    def __str__(self) -> str:
        since = self.whole_since
        if since is None:
            return f"All jobs of flow {self.flow} can be replayed whole: nothing was removed."
        when = since.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        why = " and ".join(
            f"{k.topic}, {self._lost(k)}" for k in self.topics if k.topic in self.limits
        )
        return (
            f"Jobs of flow {self.flow} that were submitted since {when} can be replayed whole; of "
            f"older ones something may be missing in {why}."
        )

    def _lost(self, kept: Kept) -> str:
        if kept.compacts and kept.whole_since(self.at) == kept.settled(self.at):
            return "where older steps may be compacted (job_history keeps them)"
        by = "retention or by hand" if kept.deletes else "hand"
        first = "first record was" if kept.removed == 1 else f"first {kept.removed:,} offsets were"
        return f"whose {first} removed by {by}"


def horizon(flow: Flow, settings: Settings, admin: AdminClient | None = None) -> Horizon:
    """How far back the jobs of `flow` can be replayed, as the topics are now. Reads only.

    Raises `BadSetup` if a topic does not exist, `BadWorld` when Kafka does not answer.
    """
    admin = admin or admin_client(settings)
    names = settings.names
    wanted: dict[str, str | None] = {
        names.stage_topic(flow.name, each): each for each in flow.inputs
    }
    wanted[names.job_state_topic] = None
    facts = describe_topics(settings, admin, wanted)
    missing = [name for name in wanted if name not in facts]
    if missing:
        raise BadSetup(f"Topic {missing[0]} does not exist. Run `handoff topics apply` first.")
    kept = (_kept(settings, admin, facts[name], stage) for name, stage in wanted.items())
    return Horizon(flow.name, datetime.now(UTC), tuple(kept))


def _kept(settings: Settings, admin: AdminClient, topic: TopicFacts, stage: str | None) -> Kept:
    config = topic_config(settings, admin, topic.name)
    firsts = first_records(settings, admin, topic)
    low = low_watermarks(settings, admin, topic)
    ends = end_offsets(settings, admin, topic)
    return kept_by(config, topic.name, stage, _parts(low, ends, firsts))


def kept_by(
    config: Mapping[str, str], topic: str, stage: str | None, parts: Iterable[KeptPart]
) -> Kept:
    """`config` as the broker spells it."""
    policy = config.get(_POLICY, "")
    deletes, compacts = "delete" in policy, "compact" in policy
    return Kept(
        topic,
        stage,
        deletes,
        compacts,
        _age(config.get(_RETENTION)) if deletes else None,
        _age(config.get(_COMPACTION_LAG)) if compacts else None,
        tuple(parts),
    )


def _parts(
    low: Mapping[int, int], ends: Mapping[int, int], firsts: Mapping[int, tuple[int, int]]
) -> list[KeptPart]:
    """`firsts`: offset and epoch ms of the first record; an offset below 0 says that there is
    none."""
    parts = []
    for partition, at in sorted(low.items()):
        offset, ms = firsts[partition]
        # Retention may have moved on since it was asked.
        is_there = offset >= at
        parts.append(
            KeptPart(
                partition,
                at,
                ends[partition],
                offset if is_there else None,
                datetime.fromtimestamp(max(0, ms) / 1e3, UTC) if is_there else None,
            )
        )
    return parts


def _age(ms: str | None) -> timedelta | None:
    """None for no limit, which Kafka spells -1."""
    if ms is None or int(ms) < 0:
        return None
    # Kafka's greatest number of milliseconds is more than a date can hold.
    return timedelta(milliseconds=min(int(ms), 10**14))
