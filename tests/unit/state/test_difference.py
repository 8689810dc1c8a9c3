"""What is said of a job on which the log and Postgres disagree."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from schemas.state import Status
from streams.state.difference import Difference, compare
from streams.state.views import Job

JOB = Job(
    trace_id="a" * 32,
    flow="mail",
    stage="act",
    status=Status.DONE,
    seq=3,
    attempts=1,
    data={"n": 1},
    error=None,
    parent=None,
    worker="0.1f",
    usage=None,
    to=(),
    born_at=None,
    updated_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def test_equal_jobs_do_not_differ_and_each_field_that_does_is_named() -> None:
    assert list(compare(JOB, replace(JOB))) == []
    other = replace(JOB, stage="lost", data={"n": 2})
    assert list(compare(JOB, other)) == [
        Difference(JOB.trace_id, "stage", "act", "lost"),
        Difference(JOB.trace_id, "data", {"n": 1}, {"n": 2}),
    ]


def test_a_job_that_only_one_side_has_is_one_difference() -> None:
    assert list(compare(JOB, None)) == [Difference(JOB.trace_id, "job", JOB, None)]
    assert list(compare(None, JOB)) == [Difference(JOB.trace_id, "job", None, JOB)]


def test_a_difference_is_a_sentence() -> None:
    only = Difference("ab", "job", JOB, None)
    step = Difference("ab", "history", "step 2, job-state[0]@7", None)
    field = Difference("ab", "stage", "act", "lost")
    assert [str(x) for x in (only, step, field)] == [
        "Job ab is only in the log.",
        "Job ab: job_history lacks step 2, job-state[0]@7.",
        "Job ab: stage is 'act' in the log and 'lost' in Postgres.",
    ]
