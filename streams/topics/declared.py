"""Topics and group offsets: declared once from a flow, compared with the cluster, applied.

A plan is a value; making one changes nothing. Offsets are seeded because workers run with
`auto.offset.reset=error`: a position that is gone must be told, never guessed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.flow import Flow
from streams.kafka import (
    AdminClient,
    NewTopic,
    TopicFacts,
    admin_client,
    change_topic_config,
    committed_offsets,
    create_topic,
    describe_topics,
    low_watermarks,
    seed_offsets,
    topic_config,
)
from streams.offsets import decode_map, encode_map

#: Dead letters and state records carry a payload and what surrounds it.
_LARGE_BYTES = 4 * 2**20
#: Kafka's own default; batches of the clients stay below it.
_DEFAULT_BYTES = 1_048_588
_HEADER_ROOM_BYTES = 256 * 1024
#: From this many replicas on, a write must reach two of them.
_REPLICAS_FOR_QUORUM = 3
_VISIBLE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic should be; `config` holds only the settings that we insist on."""

    name: str
    partitions: int
    replication_factor: int
    config: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of an existing topic that differs from its spec."""

    topic: str
    key: str
    found: str
    wanted: str


@dataclass(frozen=True, slots=True)
class Seed:
    """Partitions of a group that have no committed offset (`partitions` empty: all, to come)."""

    group: str
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A committed offset whose map does not belong to the topic as it is now."""

    group: str
    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference between a flow's specs and a cluster.

    `apply` does `create`, `change` and `seed`, and `misfits` if told to; `fixed` it never does.
    """

    create: tuple[TopicSpec, ...] = ()
    change: tuple[Change, ...] = ()
    seed: tuple[Seed, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    #: Sentences about partition counts that differ.
    fixed: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.create or self.change or self.seed or self.misfits or self.fixed)


def specs(flow: Flow, settings: Settings) -> tuple[TopicSpec, ...]:
    """All topics that `flow` needs, in the order of its stages, then timers, control, job-state."""
    names = settings.names
    retention = str(settings.retention_ms)
    # A hand-off's topic takes less than its dead-letter topic, which must hold it complete.
    room = max(_DEFAULT_BYTES, settings.max_payload_bytes + _HEADER_ROOM_BYTES)
    handed = {
        "cleanup.policy": "delete",
        "retention.ms": retention,
        "max.message.bytes": str(room),
    }
    # Dead letters wait for a person: they do not expire.
    dead = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "max.message.bytes": str(_LARGE_BYTES),
    }
    # A timer is kept by Postgres once it was read, so it need not outlive the hand-offs.
    waiting = {
        "cleanup.policy": "delete",
        "retention.ms": retention,
        "max.message.bytes": str(_LARGE_BYTES),
    }
    state = {
        "cleanup.policy": "compact",
        # Every step stays readable for as long as the hand-offs that it explains.
        "min.compaction.lag.ms": retention,
        "max.message.bytes": str(_LARGE_BYTES),
    }
    # The last word on each job and stage; read whole by every worker.
    control = {"cleanup.policy": "compact", "max.message.bytes": str(_DEFAULT_BYTES)}
    found: list[TopicSpec] = []
    for each in flow.inputs:
        found.append(_spec(names.stage_topic(flow.name, each), handed, settings))
        found.append(_spec(names.dead_letter_topic(flow.name, each), dead, settings))
    for sink in flow.sinks:
        found.append(_spec(names.stage_topic(flow.name, sink), handed, settings))
    found.append(_spec(names.timers_topic, waiting, settings))
    # One partition: orders have an order.
    found.append(_spec(names.control_topic, control, settings, partitions=1))
    found.append(_spec(names.job_state_topic, state, settings))
    return tuple(found)


def _spec(
    name: str, config: dict[str, str], settings: Settings, partitions: int | None = None
) -> TopicSpec:
    # Latencies are computed from the time that the producer wrote.
    config = {**config, "message.timestamp.type": "CreateTime"}
    if settings.replication_factor >= _REPLICAS_FOR_QUORUM:
        config["min.insync.replicas"] = "2"
    return TopicSpec(
        name,
        partitions or settings.partitions,
        settings.replication_factor,
        tuple(sorted(config.items())),
    )


def groups(flow: Flow, settings: Settings) -> tuple[tuple[str, str], ...]:
    """(group, topic) of every group whose offsets are kept in Kafka; the agents on job-state and
    timers keep theirs in Postgres."""
    names = settings.names
    return tuple(
        (names.stage_group(flow.name, each), names.stage_topic(flow.name, each))
        for each in flow.inputs
    )


def plan(flow: Flow, settings: Settings, admin: AdminClient | None = None) -> Plan:
    """Compare; changes nothing. Raises `BadWorld` when the cluster does not answer."""
    admin = admin or admin_client(settings)
    wanted = specs(flow, settings)
    facts = describe_topics(settings, admin, [s.name for s in wanted])
    existing = [s for s in wanted if s.name in facts]
    seeds: list[Seed] = []
    misfits: list[Misfit] = []
    for group, topic in groups(flow, settings):
        if topic not in facts:
            seeds.append(Seed(group, topic, ()))
            continue
        missing, bad = _offsets_of(settings, group, facts[topic])
        seeds += [Seed(group, topic, missing)] if missing else []
        misfits += bad
    return Plan(
        create=tuple(s for s in wanted if s.name not in facts),
        change=tuple(c for s in existing for c in _changes(settings, admin, s)),
        seed=tuple(seeds),
        misfits=tuple(misfits),
        fixed=tuple(
            f"{s.name} has {facts[s.name].partitions} partitions, not {s.partitions}. Partition "
            "counts are fixed, since a job's records must stay in one partition: change them by a "
            "new topic and a drain, or set HANDOFF_PARTITIONS to what is there."
            for s in existing
            if facts[s.name].partitions != s.partitions
        ),
    )


def _changes(settings: Settings, admin: AdminClient, spec: TopicSpec) -> Iterator[Change]:
    found = topic_config(settings, admin, spec.name)
    for key, value in spec.config:
        if found.get(key) != value:
            yield Change(spec.name, key, found.get(key, "not set"), value)


def _offsets_of(
    settings: Settings, group: str, topic: TopicFacts
) -> tuple[tuple[int, ...], list[Misfit]]:
    committed = committed_offsets(settings, group, topic)
    missing = tuple(p for p in range(topic.partitions) if p not in committed)
    misfits = []
    for p, tp in committed.items():
        if not tp.metadata:
            # Reset by a person: legal, what is finished is skipped as a suspect.
            continue
        try:
            decode_map(
                tp.metadata,
                topic_id=topic.topic_id,
                committed=tp.offset,
                where=f"group {group} at {topic.name}[{p}]",
            )
        except BadSetup as e:
            misfits.append(Misfit(group, topic.name, p, e.message))
    return missing, misfits


def apply(flow: Flow, settings: Settings, *, reseed: bool = False) -> Plan:
    """Create, configure, wait for leaders, seed; returns what was found and, if it could be, done.

    Idempotent, and safe to run again after a crash at any point: each part is compared anew. A
    group whose map belongs to another topic is set to the first record only with `reseed`.
    """
    admin = admin_client(settings)
    found = plan(flow, settings, admin)
    for spec in found.create:
        create_topic(settings, admin, _new_topic(spec))
    for topic in dict.fromkeys(c.topic for c in found.change):
        changes = {c.key: c.wanted for c in found.change if c.topic == topic}
        change_topic_config(settings, admin, topic, changes)
    facts = _wait_for_leaders(settings, admin, [s.name for s in specs(flow, settings)])
    # A topic that was created just now may have a namesake's offsets: look again.
    for group, topic in groups(flow, settings):
        missing, misfits = _offsets_of(settings, group, facts[topic])
        again = [m.partition for m in misfits] if reseed else []
        if partitions := [*missing, *again]:
            _seed(settings, admin, group, facts[topic], partitions)
    return found


def _new_topic(spec: TopicSpec) -> NewTopic:
    return NewTopic(
        spec.name,
        num_partitions=spec.partitions,
        replication_factor=spec.replication_factor,
        config=dict(spec.config),
    )


def _wait_for_leaders(
    settings: Settings, admin: AdminClient, names: list[str]
) -> dict[str, TopicFacts]:
    # The broker that answers may not have heard of a topic that was created a moment ago.
    deadline = time.monotonic() + _VISIBLE_TIMEOUT_S
    facts = describe_topics(settings, admin, names)
    while gone := sorted(set(names) - set(facts)):
        if time.monotonic() > deadline:
            raise BadWorld(f"Topic {gone[0]} does not appear on the cluster. Apply again later.")
        time.sleep(0.1)
        facts = describe_topics(settings, admin, names)
    for topic in facts.values():
        # Only a leader answers this, and it is asked again until there is one.
        low_watermarks(settings, admin, topic)
    return facts


def _seed(
    settings: Settings, admin: AdminClient, group: str, topic: TopicFacts, partitions: list[int]
) -> None:
    low = low_watermarks(settings, admin, topic)
    offsets = {p: (low[p], encode_map(topic.topic_id, low[p], [])) for p in partitions}
    seed_offsets(settings, admin, group, topic, offsets)
