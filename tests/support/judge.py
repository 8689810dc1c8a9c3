"""Judgements over a finished run: what must be true of topics, Postgres and the target."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from schemas import headers as h
from schemas.state import JobState, Status
from tests.support.flows import Job
from tests.support.rig import Rig
from tests.support.topics import Record

#: The steps of a job that goes the whole way.
_PATH = ("take", "work", "finish")
_STEPS = [(1, "take", Status.RUNNING), (2, "work", Status.RUNNING), (3, "finish", Status.DONE)]
_REJECTED_STEPS = [_STEPS[0], (2, "work", Status.FAILED)]


def doubles(items: Iterable[Any]) -> dict[Any, int]:
    return {item: n for item, n in Counter(items).items() if n > 1}


def assert_no_step_twice(rig: Rig) -> None:
    """(traceId, seq) names one record of job-state and one of each hand-off topic."""
    assert doubles((s.trace_id, s.seq) for s in rig.states()) == {}
    for stage in (*(s.name for s in rig.flow.stages[1:]), *rig.flow.sinks):
        # What the runtime wrote: submissions have no step, and tests forge records without a type.
        written = (
            (r.job, r.seq)
            for r in rig.records(stage)
            # Redrives may be sent twice; what they do is not done twice.
            if r.header("ce_type") and r.seq and r.header(h.REDRIVE) is None
        )
        assert doubles(written) == {}, f"hand-offs to {stage}"


def assert_all_done_once(
    rig: Rig, ids: Collection[str], path: tuple[str, ...] = _PATH, rejected: Collection[str] = ()
) -> None:
    """Drained; each job has each step once, in order, ends `done` and lies on the sink once; those
    `rejected` by `work` end there, failed, with one dead letter each."""
    rig.wait_drained()
    assert_no_step_twice(rig)
    steps = steps_by_job(rig.states())
    assert set(steps) == set(ids), "jobs in job-state"
    for trace_id, states in steps.items():
        told = [(s.seq, s.stage, s.status) for s in states]
        assert told == (_REJECTED_STEPS if trace_id in rejected else _STEPS), trace_id
    results = rig.records("done")
    assert Counter(r.job for r in results) == Counter(set(ids) - set(rejected)), "on the sink"
    # A record without a usable key is nobody's here.
    letters = Counter(r.job for r in rig.dead_letters("work") if r.key and r.job in steps)
    assert letters == Counter(rejected), "dead letters"
    wrong = [r for r in results if Job.model_validate_json(r.value or b"").path != path]
    assert wrong == []


def steps_by_job(states: Iterable[JobState]) -> dict[str, list[JobState]]:
    """Steps of each job, in the order in which they lie in the topic."""
    steps: defaultdict[str, list[JobState]] = defaultdict(list)
    for state in states:
        steps[state.trace_id].append(state)
    return steps


def assert_projection_is_the_fold(rig: Rig) -> None:
    """Once the projection has caught up: `jobs` = fold by seq; history = every step once."""
    topic = rig.settings.names.job_state_topic
    records = rig.log(topic)
    rig.wait(lambda: _history_size(rig) >= len(records), "the projection has seen all states")
    folded: dict[str, JobState] = {}
    for state in rig.states():
        if state.trace_id not in folded or state.seq > folded[state.trace_id].seq:
            folded[state.trace_id] = state
    rows = {row["trace_id"]: row for row in rig.sql("SELECT * FROM jobs")}
    assert set(rows) == set(folded)
    for trace_id, state in folded.items():
        row = rows[trace_id]
        assert (row["flow"], row["stage"], row["status"], row["seq"], row["attempts"]) == (
            (state.flow, state.stage, state.status.value, state.seq, state.attempts)
        )
        assert (row["data"], tuple(row["handed_to"])) == (state.data, state.to)
        assert (row["error"] and row["error"]["kind"]) == (state.error and state.error.kind)
        assert (row["worker"], row["updated_at"]) == (state.worker, state.updated_at)
    history = rig.sql('SELECT "partition", "offset", trace_id, seq FROM job_history')
    assert sorted((r["partition"], r["offset"]) for r in history) == sorted(
        (r.partition, r.offset) for r in records
    )
    assert doubles((r["trace_id"], r["seq"]) for r in history) == {}
    assert rig.sql("SELECT * FROM projection_rejects") == []


def _history_size(rig: Rig) -> int:
    return int(rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"])


def assert_each_effect_once(rig: Rig, numbers: Iterable[int]) -> None:
    """By the target's own record: one key, so one effect, for each job and no other."""
    assert Counter(rig.target.effects.values()) == Counter(numbers)


def in_order_per_job(records: Iterable[Record]) -> dict[str, list[int]]:
    """Writing step of each job's records, in the order in which they lie in the topic."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        found[record.job].append(record.seq)
    return found
