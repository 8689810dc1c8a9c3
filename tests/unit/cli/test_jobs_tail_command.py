"""A step as a line and as JSON; which steps are shown."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.state import Status
from streams.cli.jobs_tail import Wanted, as_json, line
from streams.state.fold import Rejected, Step, parse
from tests.unit.state.records import job_id, record, state

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"


def step(job: str = JOB, seq: int = 1, **changes: Any) -> Step:
    made = record(state(job, seq, **changes), timestamp_ms=1_760_000_000_123)
    assert made.value is not None
    found = parse(made, made.value)
    assert not isinstance(found, Rejected)
    return found


def test_a_step_is_one_line() -> None:
    error = {"kind": "rejected", "message": "no\r\nsuch \x1b]0;desk\x07 at  all"}
    failed = step(status=Status.FAILED, to=(), error=error)
    assert line(failed).plain == (
        "2025-10-09 08:53:20.123Z  4bf92f3577b3  mail  classify  failed  #1  1 µs"
        "  rejected: no such \ufffd]0;desk\ufffd at all"
    )
    assert "running → enrich  #1" in line(step()).plain


def test_a_step_without_times_has_no_durations() -> None:
    bare = step(timing=None)
    assert line(bare).plain.endswith("#1  -")
    told = as_json(bare)
    assert (told["queued_us"], told["working_us"], told["error"]) == (None, None, None)
    assert (told["job"], told["to"], told["seq"]) == (JOB, ("enrich",), 1)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (Wanted(), True),
        (Wanted("mail", "classify", Status.RUNNING, JOB[:3]), True),
        (Wanted(flow="other"), False),
        (Wanted(stage="act"), False),
        (Wanted(status=Status.DONE), False),
        (Wanted(job=job_id(1)[:3]), False),
    ],
)
def test_every_filter_must_hold(wanted: Wanted, taken: bool) -> None:
    assert wanted.takes(step()) is taken
