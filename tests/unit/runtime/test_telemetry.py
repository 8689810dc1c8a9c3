"""Committed steps and the state of partitions become figures."""

from __future__ import annotations

from typing import Any

from schemas.state import JobError
from streams.runtime.ownership import Ownership
from streams.runtime.telemetry import (
    ATTEMPTS,
    DEAD_LETTERS,
    DELAY,
    DURATION,
    JOB_DURATION,
    LAG,
    LAG_TIME,
    QUEUED,
    STEPS,
    count_steps,
    lag,
)
from streams.state.fold import Step
from streams.tracing.metrics import Metrics, Point, Spec
from tests.unit.runtime.fakes import make_tracker


def step(**changes: Any) -> Step:
    fields: dict[str, Any] = dict.fromkeys(Step._fields)
    fields |= {
        "flow": "mail",
        "status": "running",
        "attempts": 1,
        "consumed_topic": "mail.act",
        "born_us": 0,
        "produced_us": 1_000_000,
        "polled_us": 3_000_000,
        "started_us": 4_000_000,
        "finished_us": 8_000_000,
        "committed_us": 9_000_000,
    }
    return Step(**(fields | changes))


def points(metrics: Metrics, spec: Spec) -> dict[str, Point]:
    """By `error.type`, or by `handoff.status`."""
    return {
        dict(a).get("error.type", "") or dict(a).get("handoff.status", ""): p
        for s, a, p in metrics.collect()
        if s is spec
    }


def test_steps_are_counted_by_what_became_of_them() -> None:
    error = JobError(kind="ValueError", message="no").model_dump_json()
    metrics = Metrics()
    for _ in range(2):
        count_steps(
            metrics,
            [
                step(),
                step(status="done", attempts=2),
                step(status="waiting", attempts=1, error=error),
                step(status="failed", attempts=4, error=error),
            ],
            at_us=10_000_000,
        )
    assert {k: p.value for k, p in points(metrics, STEPS).items()} == {"": 6, "ValueError": 2}
    assert {k: p.value for k, p in points(metrics, DEAD_LETTERS).items()} == {"ValueError": 2}
    # A wait is no end of a step's attempts: those that come after it include them.
    assert {k: p.value for k, p in points(metrics, ATTEMPTS).items()} == {"": 6, "ValueError": 8}
    assert points(metrics, DURATION)[""].value == 6 * 4
    assert points(metrics, QUEUED)[""].value == 6 * 2
    assert {k: p.value for k, p in points(metrics, JOB_DURATION).items()} == {
        "done": 16,
        "failed": 16,
    }
    assert points(metrics, DELAY)[""].value == 8


def test_a_step_without_times_is_counted_all_the_same() -> None:
    metrics = Metrics()
    bare = dict.fromkeys(("born_us", "produced_us", "polled_us", "started_us", "finished_us"))
    count_steps(metrics, [step(**bare, consumed_topic=None, status="failed")], at_us=0)
    assert points(metrics, STEPS)["unknown"].value == 1
    assert points(metrics, DELAY)[""].value == 0


def test_lag_is_what_is_not_read_and_what_is_in_work() -> None:
    tracker, ownership = make_tracker(), Ownership()
    ownership.assign([tracker], None)
    for offset in range(3):
        tracker.deliver(offset)
    tracker.behind, tracker.newest_us = 5, 1
    found = {spec: value for spec, _, value in lag(ownership)}
    assert found[LAG] == 8
    assert found[LAG_TIME] > 1e6
    tracker.promote(tracker.plan([0, 1, 2], 4_096))
    tracker.behind = 0
    assert [value for _, _, value in lag(ownership)] == [0, 0]
