"""Looks at all groups of an installation, twice, for `streams.why.lag`. Reads only, joins nothing.

Ends of topics are read before positions: what is finished meanwhile is not taken for behind.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from streams.config import Settings
from streams.control import look
from streams.errors import BadSetup
from streams.kafka import (
    AdminClient,
    GroupFacts,
    Place,
    Reading,
    admin_client,
    describe_settled_group,
)
from streams.names import Names
from streams.offsets import Range
from streams.positions import positions_of
from streams.postgres import SyncConn
from streams.why import postgres_facts as rows
from streams.why.facts import WorkerRow
from streams.why.lag import Lag, Reason, Seen, judge
from streams.why.topic_facts import Lane, Part, Topics, owner_slot

#: So many offsets of a partition are read to be counted; beyond them offsets are counted.
LIMIT: Final = 5_000
_APART_S: Final = 1.0
#: A worker that lives and is silent is looked at for longer before it is called stuck.
_SILENT_LOOKS: Final = 4

_PROJECTOR, _TIMERS, _TRACER = "projector", "timers", "tracer"


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group and what it reads. Positions are in Postgres' `table`; None: in Kafka."""

    name: str
    agent: str
    flow: str
    topic: str
    table: str | None = None


def groups_of(names: Names, stages: Iterable[tuple[str, str]]) -> list[Group]:
    """The groups of `stages` (flow and stage), and of the agents that serve all flows."""
    found = [
        Group(names.stage_group(flow, stage), stage, flow, names.stage_topic(flow, stage))
        for flow, stage in stages
    ]
    state = names.job_state_topic
    return [
        *found,
        Group(names.projector_group, _PROJECTOR, "", state, "projection_offsets"),
        Group(names.timers_group, _TIMERS, "", names.timers_topic, "timer_offsets"),
        Group(names.tracer_group, _TRACER, "", state, "tracer_offsets"),
    ]


def lags(
    conn: SyncConn,
    settings: Settings,
    agents: Collection[str] = (),
    *,
    flow: str | None = None,
    limit: int = LIMIT,
) -> list[Lag]:
    """The lag of each partition of each group: of all, or of those stages and agents that are
    named in `agents`; of one `flow`'s stages and no agents, if one is named. Takes a second or
    more.

    A tracer that does not run, and was not lost, is left out: tracing is optional.

    Raises `BadSetup` for a name that there is not, and where there are no topics, `BadWorld` when
    Kafka or Postgres does not answer.
    """
    look = _Look(conn, settings, limit)
    wanted = _chosen(groups_of(settings.names, look.topics.stages()), agents, flow)
    before, began = look.parts(wanted), time.monotonic()
    for left in reversed(range(_SILENT_LOOKS)):
        time.sleep(_APART_S)
        found = look.judged(before, wanted, began)
        if not left or all(lag.reason is not Reason.SILENT for lag in found):
            break
    return found


def _chosen(groups: list[Group], agents: Collection[str], flow: str | None) -> list[Group]:
    if flow is not None:
        groups = [g for g in groups if g.flow == flow]
    known = {g.agent for g in groups}
    if strangers := sorted(set(agents) - known):
        raise BadSetup(
            f"There is no stage or agent {strangers[0]}; there are {', '.join(sorted(known))}."
        )
    return [g for g in groups if not agents or g.agent in agents]


class _Look:
    """Looks at the same groups again and again."""

    def __init__(self, conn: SyncConn, settings: Settings, limit: int) -> None:
        self._conn, self._settings, self._limit = conn, settings, limit
        self.topics = Topics(settings)
        self._orders = look(settings, needed=False)

    def parts(self, groups: Iterable[Group]) -> dict[str, list[Part]]:
        """How far each group is in each partition, by the name of the group."""
        return {g.name: self._parts(g) for g in groups}

    def _parts(self, group: Group) -> list[Part]:
        spans = self.topics.spans(group.topic)
        if group.table is None:
            return self.topics.parts(spans)
        at = positions_of(self._conn, group.table, spans[0].topic.topic_id)
        parts = []
        for span in spans:
            head = max(span.low, at.get(span.partition, 0))
            parts.append(Part(replace(span, start=min(head, span.end)), head, ()))
        return parts

    def judged(
        self, before: Mapping[str, Sequence[Part]], groups: Iterable[Group], began: float
    ) -> list[Lag]:
        """The verdicts of a look now, `before` being one that ended at `began`, monotonic."""
        found: list[Lag] = []
        lost_s = self._settings.worker_lost_s
        with admin_client(self._settings) as admin:
            for group in groups:
                facts = describe_settled_group(self._settings, admin, group.name, group.topic)
                workers = rows.workers(self._conn, group.name)
                if group.agent == _TRACER and not is_in_use(facts, workers):
                    continue
                parts = self._parts(group)
                counts = count(self._settings, admin, parts, self._limit)
                apart_s = time.monotonic() - began
                now = rows.now(self._conn)
                for then, part, counted in zip(before[group.name], parts, counts, strict=True):
                    seen = _seen(group, part, counted, facts, workers)
                    moved = max(0, part.passed - then.passed)
                    order = self._orders.pauses(group.flow, group.agent)
                    said = "" if order is None else order.said
                    seen = replace(seen, moved=moved, apart_s=apart_s, ordered=said)
                    found.append(judge(seen, now, lost_s))
        return found


def is_in_use(facts: GroupFacts, workers: Sequence[WorkerRow]) -> bool:
    """Whether an agent that need not run does, or was lost while it did."""
    return bool(facts.members) or any(w.clean is not True for w in workers)


@dataclass(slots=True)
class Counted:
    """Records of a partition that are not finished, and when the first of them was written."""

    records: int = 0
    exact: bool = True
    oldest_ms: int | None = None


def count(
    settings: Settings, admin: AdminClient, parts: Sequence[Part], limit: int
) -> list[Counted]:
    """Read `parts`, of one topic, from their positions on, and count what is not finished.

    Of each no more than `limit` offsets are read; the rest is counted by offsets, which are a few
    more than the records. Raises `BadWorld` when Kafka does not give what it has.
    """
    found = [Counted() for _ in parts]
    lanes = {p.span.partition: (Lane(p), c) for p, c in zip(parts, found, strict=True)}
    starts: dict[Place, int] = {(p.span.topic.name, p.span.partition): p.span.start for p in parts}
    ends = {
        (p.span.topic.name, p.span.partition): min(p.span.end, p.span.start + limit) for p in parts
    }
    reading = Reading(settings, admin, [p.span.topic for p in parts[:1]], starts, ends)
    for batch in reading.batches():
        for record in batch:
            lane, counted = lanes[record.partition()]
            if lane.deliver(record) is not None and counted.oldest_ms is None:
                counted.oldest_ms = record.timestamp()[1]
    for (lane, counted), end in zip(lanes.values(), ends.values(), strict=True):
        rest = unfinished(end, lane.part.span.end, lane.part.finished)
        counted.records = lane.unfinished + rest
        counted.exact = not rest
    return found


def unfinished(start: int, end: int, finished: Iterable[Range]) -> int:
    """Offsets from `start` to before `end` that lie in none of `finished`."""
    done = sum(max(0, min(b, end) - max(a, start)) for a, b in finished)
    return max(0, end - start) - done


def _seen(
    group: Group, part: Part, counted: Counted, facts: GroupFacts, workers: Sequence[WorkerRow]
) -> Seen:
    slot = owner_slot(facts, group.name, part.span.partition)
    oldest = counted.oldest_ms
    return Seen(
        group=group.name,
        agent=group.agent,
        flow=group.flow,
        topic=group.topic,
        partition=part.span.partition,
        head=part.head,
        end=part.span.end,
        records=counted.records,
        exact=counted.exact,
        oldest_at=None if oldest is None else datetime.fromtimestamp(max(0, oldest) / 1e3, UTC),
        moved=0,
        apart_s=0.0,
        settled=facts.settled,
        slot=slot,
        owner=next((w for w in workers if w.slot == slot), None),
    )
