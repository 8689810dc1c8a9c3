"""An audit in plain dictionaries that shares no code with `streams.audit`, to hold it to.

It knows less: no horizon, no live system, all in memory. What it judges, both must judge alike:
`opinion(rig)` gives (rule, job) pairs under the audit's names.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from tests.support.rig import Rig
from tests.support.topics import Record

Verdicts = set[tuple[str, str]]

#: Rules that it knows; others of the audit have no say here.
KNOWN = frozenset(
    {
        "hand_off_lost",
        "hand_off_doubled",
        "hand_off_without_cause",
        "record_lost",
        "step_doubled",
        "state_without_cause",
        "letter_missing",
        "letter_without_state",
        "projection_missing",
        "projection_extra",
        "projection_differs",
        "history_missing",
        "history_extra",
        "target_doubled",
    }
)


def opinion(rig: Rig, effects: list[str] | None = None) -> Verdicts:
    """What is wrong with a drained, projected run. `effects`: keys of the target's record."""
    stages = [stage.name for stage in rig.flow.stages]
    states = [(r, json.loads(r.value or b"")) for r in rig.log(rig.settings.names.job_state_topic)]
    by_step: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for _, state in states:
        by_step[state["traceId"], state["seq"]].append(state)
    found: Verdicts = {("step_doubled", job) for (job, _), x in by_step.items() if len(x) > 1}
    topics = {s: rig.records(s) for s in [*stages, *rig.flow.sinks]}
    forged = _without_cause(rig, states, topics)
    found |= {("state_without_cause", job) for job, _ in forged}
    for stage, records in topics.items():
        found |= _hand_offs(stage, records, by_step, stage in stages)
    found |= _lost(states, topics, forged)
    for stage in stages:
        found |= _letters(rig, stage, by_step, forged)
    found |= _projection(rig, states)
    for key, count in Counter(effects or []).items():
        if count > 1:
            found.add(("target_doubled", key.split(":")[0]))
    return found


def _header(record: Record, name: str) -> bytes | None:
    return dict(record.headers).get(name)


def _seq(record: Record) -> int:
    hop = _header(record, "handoff_hop")
    return int(hop.split(b";")[0] if hop else _header(record, "handoff_seq") or 0)


def _is_copy(record: Record) -> bool:
    names = {name for name, _ in record.headers}
    return bool(names & {"handoff_redrive", "handoff_timer"})


def _without_cause(rig: Rig, states: list[Any], topics: Any) -> set[tuple[str, int]]:
    places = {
        (rig.topic(stage), r.partition, r.offset): (r.key, _seq(r))
        for stage, records in topics.items()
        for r in records
    }
    forged = set()
    for _, state in states:
        at = state["consumed"]
        cause = places.get((at["topic"], at["partition"], at["offset"]))
        if cause != (state["traceId"].encode(), state["seq"] - 1):
            forged.add((state["traceId"], state["seq"]))
    return forged


def _hand_offs(stage: str, records: list[Record], by_step: Any, consumed: bool) -> Verdicts:
    """The run is drained: every record of a stage's topic has been consumed."""
    found: Verdicts = set()
    plain = Counter((r.job, _seq(r)) for r in records if _seq(r) and not _is_copy(r))
    found |= {("hand_off_doubled", job) for (job, _), n in plain.items() if n > 1}
    for r in records:
        seq = _seq(r)
        writers = by_step.get((r.job, seq), [])
        if seq and not any(_is_copy(r) or stage in s["to"] for s in writers):
            found.add(("hand_off_without_cause", r.job))
        done = by_step.get((r.job, seq + 1), [])
        if consumed and not any(s["stage"] == stage for s in done):
            found.add(("record_lost", r.job))
    return found


def _lost(states: list[Any], topics: Any, forged: set[tuple[str, int]]) -> Verdicts:
    there = {
        (stage, r.job, _seq(r))
        for stage, records in topics.items()
        for r in records
        if not _is_copy(r)
    }
    return {
        ("hand_off_lost", s["traceId"])
        for _, s in states
        for to in s["to"]
        if (to, s["traceId"], s["seq"]) not in there and (s["traceId"], s["seq"]) not in forged
    }


def _letters(rig: Rig, stage: str, by_step: Any, forged: set[tuple[str, int]]) -> Verdicts:
    letters = {
        ((_header(r, "handoff_dlq_job") or b"").decode(), int(_header(r, "handoff_dlq_seq") or 0))
        for r in rig.dead_letters(stage)
    }
    failed = {
        step
        for step, states in by_step.items()
        for s in states
        if s["status"] in ("failed", "waiting") and s["stage"] == stage and step not in forged
    }
    return {("letter_missing", job) for job, _ in failed - letters} | {
        ("letter_without_state", job) for job, _ in letters - failed
    }


def _projection(rig: Rig, states: list[Any]) -> Verdicts:
    last: dict[str, Any] = {}
    for _, state in states:
        if state["seq"] > last.get(state["traceId"], {"seq": 0})["seq"]:
            last[state["traceId"]] = state
    rows = {row["trace_id"]: row for row in rig.sql("SELECT * FROM jobs")}
    found: Verdicts = {("projection_missing", job) for job in last.keys() - rows.keys()}
    found |= {("projection_extra", job) for job in rows.keys() - last.keys()}
    for job in last.keys() & rows.keys():
        state, row = last[job], rows[job]
        fields = ("seq", "stage", "status", "attempts", "data", "flow")
        same = all(state[name] == row[name] for name in fields)
        if not same or list(state["to"]) != row["handed_to"] or state["worker"] != row["worker"]:
            found.add(("projection_differs", job))
    places = {(r.partition, r.offset): s["traceId"] for r, s in states}
    history = {
        (row["partition"], row["offset"]): row["trace_id"]
        for row in rig.sql('SELECT "partition", "offset", trace_id FROM job_history')
    }
    found |= {("history_missing", places[at]) for at in places.keys() - history.keys()}
    found |= {("history_extra", history[at]) for at in history.keys() - places.keys()}
    return found
