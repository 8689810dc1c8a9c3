"""Which topics there are to judge, and where their groups stand.

Flows are found by the names of their topics, not in code: what lies there is judged as it is, also
stages that are no longer declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from schemas.state import JOIN
from streams.config import Settings
from streams.errors import BadSetup
from streams.kafka import (
    AdminClient,
    TopicFacts,
    committed_offsets,
    describe_topics,
    low_watermarks,
    offsets_since,
    topic_config,
    topic_names,
)
from streams.names import Names
from streams.offsets import Range, decode_map

_PAIR = re.compile(r"([a-z_][a-z0-9_]*)\.([a-z_][a-z0-9_]*)")
#: With `--since`, topics are read from so much earlier: a step's records differ by little.
SINCE_MARGIN_MS: Final = 600_000


class Role(StrEnum):
    STAGE = "stage"
    #: Of the join agent: what forks expect and what their branches bring.
    JOIN = "join"
    SINK = "sink"
    LETTERS = "letters"
    STATE = "state"
    TIMERS = "timers"
    #: Named by a fact, not there.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Source:
    """A topic. `low` is its first offset by partition, `start` where reading begins.

    Kafka keeps each record for `keeps_ms` at least: None is for ever, 0 promises nothing. For
    `job-state` it is the compaction lag.
    """

    n: int
    role: Role
    flow: str
    stage: str
    facts: TopicFacts
    low: Mapping[int, int]
    start: Mapping[int, int]
    keeps_ms: int | None

    @property
    def name(self) -> str:
        return self.facts.name


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stage's group stands in a partition; `head` None: nowhere yet. `fault`: why its map
    cannot be used."""

    partition: int
    head: int | None
    finished: tuple[Range, ...] = ()
    fault: str | None = None


class Catalogue:
    """The topics by number; those that facts name and that are not there get numbers, too."""

    def __init__(self, sources: Iterable[Source], names: Names) -> None:
        self.sources = tuple(sources)
        self._names = names
        self._by_id = {str(s.facts.topic_id): s.n for s in self.sources}
        self._by_name = {s.name: s.n for s in self.sources}
        self.gone: dict[int, tuple[str, str, str]] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def of(self, *roles: Role) -> list[Source]:
        return [s for s in self.sources if s.role in roles]

    @property
    def state(self) -> Source:
        return self.of(Role.STATE)[0]

    def by_id(self, topic_id: UUID | str | None) -> int | None:
        """Number of a topic by its UUID; 0: another one; None: none was named."""
        return None if topic_id is None else self._by_id.get(str(topic_id), 0)

    def stage(self, flow: str, stage: str) -> int:
        """Number of a stage's or sink's topic."""
        known = self._numbers.get((flow, stage))
        if known is None:
            known = self._numbers[flow, stage] = self._number(flow, stage)
        return known

    def _number(self, flow: str, stage: str) -> int:
        name = self._names.stage_topic(flow, stage)
        if name not in self._by_name:
            n = self._by_name[name] = len(self.sources) + len(self.gone) + 1
            self.gone[n] = (name, flow, stage)
        return self._by_name[name]


def discover(
    settings: Settings, admin: AdminClient, flow: str | None, since_ms: int | None
) -> Catalogue:
    """All topics of the installation's flows, or of one.

    Raises `BadSetup` when there is no such flow or no job-state, `BadWorld` without Kafka.
    """
    names = settings.names
    every = topic_names(settings, admin)
    roles = _roles(names, every)
    flows = {found for _, found, _ in roles.values() if found}
    if names.job_state_topic not in every or not flows:
        raise BadSetup(
            f"There is nothing to audit at {settings.kafka_bootstrap_servers}: no topic "
            f"{names.job_state_topic} with a flow's topics beside it. Run `handoff topics apply`, "
            "or set HANDOFF_PREFIX."
        )
    if flow is not None and flow not in flows:
        raise BadSetup(f"There are no topics of flow {flow}, but of: {', '.join(sorted(flows))}.")
    wanted = {t: role for t, role in roles.items() if role[1] in ("", flow or role[1])}
    facts = describe_topics(settings, admin, wanted)
    sources: list[Source] = []
    for topic in sorted(facts):
        role, its_flow, stage = wanted[topic]
        low = low_watermarks(settings, admin, facts[topic])
        sources.append(
            Source(
                len(sources) + 1,
                role,
                its_flow,
                stage,
                facts[topic],
                low,
                _starts(settings, admin, facts[topic], low, since_ms),
                _keeps_ms(role, topic_config(settings, admin, topic)),
            )
        )
    return Catalogue(sources, names)


def _roles(names: Names, every: Iterable[str]) -> dict[str, tuple[Role, str, str]]:
    """Role, flow and stage of each topic that is ours: a flow is known by its dead letters."""
    letters = {t: of for t in every if (of := names.of_dead_letters(t)) is not None}
    stages = set(letters.values())
    flows = {flow for flow, _ in stages}
    found = {t: (Role.LETTERS, *of) for t, of in letters.items()}
    for topic in every:
        pair = _PAIR.fullmatch(topic.removeprefix(names.prefix))
        if topic.startswith(names.prefix) and pair is not None and pair[1] in flows:
            found[topic] = (_role(pair[2], (pair[1], pair[2]) in stages), pair[1], pair[2])
    found[names.job_state_topic] = (Role.STATE, "", "")
    if (timers := f"{names.prefix}timers") in every:
        found[timers] = (Role.TIMERS, "", "")
    return found


def _role(stage: str, consumed: bool) -> Role:
    if not consumed:
        return Role.SINK
    return Role.JOIN if stage == JOIN else Role.STAGE


def _starts(
    settings: Settings,
    admin: AdminClient,
    topic: TopicFacts,
    low: Mapping[int, int],
    since_ms: int | None,
) -> Mapping[int, int]:
    if since_ms is None:
        return low
    # -1: nothing so young is there, so nothing is to be read, but for what is written meanwhile.
    found = offsets_since(settings, admin, topic, max(0, since_ms - SINCE_MARGIN_MS))
    return {p: max(low[p], n) if n >= 0 else -1 for p, n in found.items()}


def _keeps_ms(role: Role, config: Mapping[str, str]) -> int | None:
    if role is Role.STATE:
        return int(config.get("min.compaction.lag.ms", "0"))
    if config.get("retention.bytes", "-1") != "-1":
        return 0
    retention = int(config.get("retention.ms", "-1"))
    return None if retention < 0 else retention


def positions(settings: Settings, source: Source) -> list[Position]:
    """Where the group of a stage stands, read stable. Raises `BadWorld`."""
    committed = committed_offsets(settings, source.name, source.facts)
    return [
        _position(source, p, committed[p].offset, committed[p].metadata or "")
        if p in committed
        else Position(p, None)
        for p in range(source.facts.partitions)
    ]


def _position(source: Source, partition: int, head: int, metadata: str) -> Position:
    if not metadata:
        # A tool moved it; what is finished past it, states tell.
        return Position(partition, head)
    try:
        finished = decode_map(
            metadata,
            topic_id=source.facts.topic_id,
            committed=head,
            where=f"group {source.name} on {source.name}[{partition}]",
        )
        return Position(partition, head, tuple(finished))
    except BadSetup as e:
        return Position(partition, head, fault=e.message)
