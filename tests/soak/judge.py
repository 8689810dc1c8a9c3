"""What must be true when all is over: by the topics, Postgres and the desk's own record.

Shares no code with the runtime or the audit but the names of topics. One topic at a time is in
memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from streams.config import Settings
from tests.soak.errands import Errand, flow
from tests.support.topics import Record, TopicLog

_EXAMPLES: Final = 5
_ENDS: Final = {"done", "failed", "cancelled"}
_ADMIN_TIMEOUT_S: Final = 30.0
#: A copy that an operator or a timer sent: the step that it asks for is done once all the same.
_COPIES: Final = {"handoff_redrive", "handoff_timer"}


@dataclass(slots=True)
class Judgement:
    """Counts of what was seen, and a sentence for each kind of fault."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def must_be_empty(self, what: str, found: Iterable[object]) -> None:
        items = sorted(map(str, found))
        self.counts[what] = len(items)
        if items:
            self.faults.append(f"{len(items)} x {what}, such as {', '.join(items[:_EXAMPLES])}")


def judge(settings: Settings, accepted: Mapping[str, Errand], record: Path) -> Judgement:
    """`settings` lead to the services, past any proxy; `record` is the desk's."""
    told = Judgement()
    steps: Counter[tuple[str, int]] = Counter()
    last: dict[str, tuple[int, str]] = {}
    owed: Counter[tuple[str, str, int]] = Counter()
    for state in map(json.loads, _values(settings, settings.names.job_state_topic)):
        job, seq = state["traceId"], state["seq"]
        steps[job, seq] += 1
        last[job] = max(last.get(job, (0, "")), (seq, state["status"]))
        if not state.get("error") and state["status"] != "waiting":
            owed.update((to, job, seq) for to in state["to"])
    told.counts["steps"] = steps.total()
    told.must_be_empty("steps doubled", _more_than_once(steps))
    told.must_be_empty(
        "steps missing", {job for job, (seq, _) in last.items() if _gaps(job, seq, steps)}
    )
    told.must_be_empty("jobs lost", accepted.keys() - last.keys())
    told.must_be_empty("jobs of nobody", last.keys() - accepted.keys())
    _judge_ends(told, accepted, last)
    _judge_hand_offs(told, settings, owed)
    _judge_results(told, settings, accepted)
    _judge_desk(told, accepted, record)
    return told


def unconsumed(settings: Settings) -> int:
    """Records that lie at or past the committed position of their stage's group."""
    admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap_servers})
    left = 0
    for stage in flow.stages:
        group = settings.names.stage_group(flow.name, stage.name)
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(_ADMIN_TIMEOUT_S).topic_partitions
        at = {tp.partition: tp.offset for tp in found}
        topic = settings.names.stage_topic(flow.name, stage.name)
        left += sum(r.offset >= at.get(r.partition, 0) for r in _records(settings, topic))
    return left


def unfinished(settings: Settings) -> int:
    """Jobs whose last state is neither an end nor the wait for an operator."""
    last: dict[str, tuple[int, bool]] = {}
    for state in map(json.loads, _values(settings, settings.names.job_state_topic)):
        parked = state["status"] == "waiting" and not state.get("wakesAt")
        over = parked or state["status"] in _ENDS
        last[state["traceId"]] = max(last.get(state["traceId"], (0, False)), (state["seq"], over))
    return sum(not over for _, over in last.values())


def _judge_ends(
    told: Judgement, accepted: Mapping[str, Errand], last: Mapping[str, tuple[int, str]]
) -> None:
    wanted = {job: "done" if errand.succeeds else "failed" for job, errand in accepted.items()}
    ended = {job: status for job, (_, status) in last.items()}
    told.counts["done"] = sum(status == "done" for status in ended.values())
    told.counts["failed on purpose"] = sum(status == "failed" for status in ended.values())
    told.must_be_empty(
        "wrong ends",
        {
            f"{job} ({ended[job]})"
            for job in wanted.keys() & ended.keys()
            if wanted[job] != ended[job]
        },
    )


def _judge_hand_offs(
    told: Judgement, settings: Settings, owed: Counter[tuple[str, str, int]]
) -> None:
    found: Counter[tuple[str, str, int]] = Counter()
    for stage in (*(s.name for s in flow.stages), *flow.sinks):
        topic = settings.names.stage_topic(flow.name, stage)
        for record in _records(settings, topic):
            names = {name for name, _ in record.headers}
            if record.seq and not names & _COPIES:
                found[stage, record.job, record.seq] += 1
    told.counts["hand-offs"] = found.total()
    told.must_be_empty("hand-offs doubled", _more_than_once(found))
    told.must_be_empty("hand-offs lost", owed.keys() - found.keys())
    told.must_be_empty("hand-offs without a cause", found.keys() - owed.keys())


def _judge_results(told: Judgement, settings: Settings, accepted: Mapping[str, Errand]) -> None:
    results: Counter[str] = Counter()
    altered = set()
    for record in _records(settings, settings.names.stage_topic(flow.name, "done")):
        results[record.job] += 1
        errand = accepted.get(record.job)
        expected = errand and errand.model_copy(update={"path": ("take", "work", "finish")})
        if expected != Errand.model_validate_json(record.value or b""):
            altered.add(record.job)
    told.must_be_empty("results doubled", _more_than_once(results))
    told.must_be_empty("results altered", altered)
    wanted = {job for job, errand in accepted.items() if errand.succeeds}
    told.must_be_empty("results lost", wanted - results.keys())
    told.must_be_empty("results of nobody", results.keys() - wanted)


def _judge_desk(told: Judgement, accepted: Mapping[str, Errand], record: Path) -> None:
    effects: Counter[str] = Counter()
    with record.open() as lines:
        for line in lines:
            key = json.loads(line)["key"]
            effects[key.split(":")[0]] += 1
    told.counts["effects"] = effects.total()
    told.must_be_empty("effects doubled", _more_than_once(effects))
    told.must_be_empty("effects lost", accepted.keys() - effects.keys())
    told.must_be_empty("effects of nobody", effects.keys() - accepted.keys())


def _more_than_once(counted: Counter[Any]) -> list[Any]:
    return [item for item, n in counted.items() if n > 1]


def _gaps(job: str, last: int, steps: Mapping[tuple[str, int], int]) -> bool:
    return any(not steps[job, seq] for seq in range(1, last + 1))


def _values(settings: Settings, topic: str) -> Iterator[bytes]:
    return (record.value or b"" for record in _records(settings, topic))


def _records(settings: Settings, topic: str) -> Iterator[Record]:
    log = TopicLog(settings.kafka_bootstrap_servers, topic)
    try:
        yield from log.advance()
    finally:
        log.close()
