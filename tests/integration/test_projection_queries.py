"""What the command line reads, from a projection that real batches made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from schemas.state import JobState, Status
from streams.config import Settings
from streams.postgres import connect, open_pool
from streams.state.fold import StateRecord
from streams.state.projector import Projection, moves_of
from streams.state.queries import (
    NoSuchJob,
    counts,
    effects_of,
    find_job,
    history,
    latencies,
    list_jobs,
)
from streams.state.views import Count, Latency
from tests.unit.state.records import TOPIC, TOPIC_ID, job_id, record, state

pytestmark = pytest.mark.services

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def project(settings: Settings, *states: JobState) -> list[StateRecord]:
    log = [record(s, n) for n, s in enumerate(states)]
    async with open_pool(settings) as pool:
        projection = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
        await projection.apply(log, moves_of(log, {}))
    return log


async def test_pages_of_jobs_miss_none_and_repeat_none(settings: Settings) -> None:
    # Three jobs share each time, so that a page ends in the middle of equal times.
    await project(
        settings,
        *(state(job_id(n), 1, updatedAt=NOON + timedelta(seconds=n // 3)) for n in range(11)),
    )
    with connect(settings) as conn:
        seen = list_jobs(conn, limit=4)
        while page := list_jobs(conn, limit=4, after=seen[-1].cursor):
            seen += page
    assert [job.trace_id for job in seen] == [job_id(n) for n in reversed(range(11))]


async def test_filters_of_jobs_are_joined_by_and(settings: Settings) -> None:
    await project(
        settings,
        state(job_id(0), 1, updatedAt=NOON),
        state(job_id(1), 2, updatedAt=NOON + timedelta(hours=1)),
        state(job_id(2), 2, updatedAt=NOON, status=Status.FAILED),
        state(job_id(3), 2, updatedAt=NOON, flow="other"),
    )
    with connect(settings) as conn:

        def ids(**filters: object) -> list[int]:
            return [int(j.trace_id, 16) - 1 for j in list_jobs(conn, **filters)]  # type: ignore[arg-type]

        assert ids() == [1, 3, 2, 0]
        assert ids(stage="enrich") == [1, 3, 2]
        assert ids(stage="enrich", status=Status.RUNNING) == [1, 3]
        assert ids(status=Status.FAILED) == [2]
        assert ids(flow="mail", since=NOON + timedelta(minutes=1)) == [1]
        assert ids(flow="none") == []
        assert ids(limit=2) == [1, 3]


async def test_a_job_is_found_by_the_beginning_of_its_id(settings: Settings) -> None:
    parent = "ab" + "0" * 30
    await project(
        settings,
        state(parent, 1),
        state(f"{parent}/0", 1, parent=parent),
        state(f"{parent}/1", 1, parent=parent),
        *(state("cd" + job_id(n)[2:], 1) for n in range(7)),
    )
    with connect(settings) as conn:
        # The whole id means the job itself, although its children's ids begin with it.
        assert find_job(conn, parent).trace_id == parent
        assert find_job(conn, f" {parent.upper()}/1").parent == parent
        assert find_job(conn, "ab").trace_id == parent, "so does a beginning of it"
        with pytest.raises(NoSuchJob, match=f"begin with {parent}/: {parent}/0, {parent}/1"):
            find_job(conn, f"{parent}/")
        with pytest.raises(NoSuchJob, match=r"and more\. Give more digits"):
            find_job(conn, "cd")
        with pytest.raises(NoSuchJob, match="No job has an id that begins with ef"):
            find_job(conn, "ef")
        for nonsense in ("", "%", "xyz", "'; DROP TABLE jobs"):
            with pytest.raises(NoSuchJob, match="hex digits are expected"):
                find_job(conn, nonsense)


async def test_the_history_of_a_job_is_its_steps_in_order(settings: Settings) -> None:
    steps = [state(job_id(0), seq) for seq in (1, 2, 3)]
    failed = state(
        job_id(1), 1, status=Status.FAILED, attempts=5, error={"kind": "k", "message": "m"}
    )
    await project(settings, steps[2], steps[0], failed, steps[1])
    with connect(settings) as conn:
        hops = history(conn, job_id(0))
        (broken,) = history(conn, job_id(1))
        assert history(conn, job_id(2)) == []
    assert [(h.seq, h.stage, h.status, h.to) for h in hops] == [
        (s.seq, s.stage, s.status, s.to) for s in steps
    ]
    assert [(h.timing, h.consumed, h.data, h.offset) for h in hops] == [
        (s.timing, s.consumed, s.data, offset) for s, offset in zip(steps, (1, 3, 0), strict=True)
    ]
    assert (broken.attempts, broken.error) == (5, failed.error)


async def test_counts_are_by_stage_and_status(settings: Settings) -> None:
    await project(
        settings,
        state(job_id(0), 3),
        state(job_id(1), 3),
        state(job_id(2), 1),
        state(job_id(3), 2, status=Status.FAILED),
        state(job_id(4), 1, flow="other"),
    )
    with connect(settings) as conn:
        assert counts(conn, flow="mail") == [
            Count("mail", "act", Status.DONE, 2),
            Count("mail", "classify", Status.RUNNING, 1),
            Count("mail", "enrich", Status.FAILED, 1),
        ]
        assert Count("other", "classify", Status.RUNNING, 1) in counts(conn)
        assert counts(conn, since=datetime.now(UTC)) == []


async def test_latency_is_from_birth_to_the_commit_of_the_last_step(settings: Settings) -> None:
    def ended(n: int, seconds: float, **changes: object) -> JobState:
        # The record's own timestamp, 1,760,000,100 s, is the commit.
        born = int((1_760_000_100 - seconds) * 1_000_000)
        names = ("producedUs", "polledUs", "startedUs", "finishedUs")
        timing = {"bornUs": born} | dict.fromkeys(names, born)
        return state(job_id(n), 3, timing=timing, **changes)

    await project(
        settings,
        *(ended(n, seconds) for n, seconds in enumerate((1.0, 2.0, 3.0, 4.0))),
        ended(4, 5.0, status=Status.FAILED),
        ended(5, 99.0, status=Status.RUNNING),
        ended(6, 99.0, flow="other"),
        state(job_id(7), 3, timing=None),
    )
    with connect(settings) as conn:
        found = latencies(conn, flow="mail")
        assert (found.jobs, found.p50_s) == (5, 3.0)
        assert found.p95_s == pytest.approx(4.8)
        assert latencies(conn, flow="none") == Latency(0, None, None)


async def test_effects_of_a_job_come_in_the_order_of_their_claims(settings: Settings) -> None:
    insert = (
        "INSERT INTO effects (key, trace_id, flow, stage, name, fingerprint, status, idempotent,"
        " result, slot, incarnation, leased_until, claimed_at, settled_at) VALUES"
        " (%s, %s, 'mail', 'act', %s, 'f', %s, true, %s, 0, 'i', now(), %s, %s)"
    )
    with connect(settings) as conn:
        conn.execute(insert, ("b", job_id(0), "reply", "done", '{"id": 7}', NOON, NOON))
        later = NOON + timedelta(seconds=1)
        conn.execute(insert, ("a", job_id(0), "file", "in_doubt", None, later, None))
        conn.execute(insert, ("c", job_id(1), "reply", "claimed", None, NOON, None))
        found = effects_of(conn, job_id(0))
    assert [(e.key, e.name, e.status, e.result, e.settled_at) for e in found] == [
        ("b", "reply", "done", {"id": 7}, NOON),
        ("a", "file", "in_doubt", None, None),
    ]
