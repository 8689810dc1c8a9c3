"""Goal: the digests of real threads are what their mails say, whatever dies meanwhile.

Method: the longest threads of the sample on real workers; the first worker is killed in the middle,
by SIGKILL, between the join agent's rows and its commit. Each digest is held against figures that
are counted here, mail by mail, from what the stages say without a broker.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import agents
from agents.digest import flow
from agents.training.corpus import Row
from schemas.digest import Thread, ThreadDigest
from schemas.mail import EnrichedMail, Mail
from schemas.state import Status
from streams.config import Settings
from streams.testing import job_context
from tests.support.judge import assert_projection_is_the_fold, doubles, steps_by_job
from tests.support.rig import Rig, job_id
from tests.support.worker import killed
from tests.unit.agents.mails import sample

pytestmark = pytest.mark.services

APP = "agents.digest:flow"
THREADS = 100
CLOCK = timedelta(days=180)
#: Few records in hand, so that many batches lie behind the kill and many before it.
BOUNDS = {"max_in_flight_records": 32, "max_commit_records": 20}


def test_digests_of_real_threads_survive_a_kill(settings: Settings, tmp_path: Path) -> None:
    threads = longest_threads()
    ids = [job_id(n) for n in range(len(threads))]
    with Rig(settings, tmp_path, flow, **BOUNDS) as rig:
        first = rig.worker(app=APP, crash_point="join.applied:16")
        jobs: Any = [thread_of(rows) for rows in threads]
        rig.submit(jobs, ids)
        killed(first)
        (arrived,) = rig.sql("SELECT count(*) AS n FROM join_arrivals")
        assert 0 < arrived["n"] < sum(map(len, threads)), "killed in the middle"
        second = rig.worker(app=APP)
        rig.wait(lambda: len(digests(rig)) >= THREADS, "all threads have a digest")
        rig.wait_drained(*flow.inputs)
        assert_projection_is_the_fold(rig)
        made = digests(rig)
        assert doubles(job for _, job, _ in made) == {}
        assert {job: (sink, digest.model_dump(mode="json")) for sink, job, digest in made} == {
            job: expected(rows) for job, rows in zip(ids, threads, strict=True)
        }
        assert {sink for sink, _, _ in made} == {"digests", "unanswered"}
        _check_steps(rig, dict(zip(ids, threads, strict=True)))
        assert second.stop() == 0


def _check_steps(rig: Rig, threads: dict[str, list[Row]]) -> None:
    """Each thread and each of its mails has each of its steps once, and no other job has any."""
    steps = steps_by_job(rig.states())
    for job, rows in threads.items():
        states = steps.pop(job)
        assert [(s.seq, s.stage, s.status) for s in states] == [
            (1, "split", Status.WAITING),
            (2, "join", Status.RUNNING),
            (3, "digest", Status.DONE),
        ]
        for n in range(len(rows)):
            assert [(s.seq, s.stage, s.status) for s in steps.pop(f"{job}/{n}")] == [
                (1, "classify", Status.RUNNING),
                (2, "enrich", Status.DONE),
            ]
    assert steps == {}


def digests(rig: Rig) -> list[tuple[str, str, ThreadDigest]]:
    """(sink, job, digest) of all that lies on the sinks."""
    return [
        (sink, record.job, ThreadDigest.model_validate_json(record.value or b""))
        for sink in flow.sinks
        for record in rig.records(sink)
    ]


@cache
def longest_threads() -> list[list[Row]]:
    """Mixed, so that long ones are not all at the beginning."""
    found: dict[str, list[Row]] = {}
    for row in sample():
        found.setdefault(row["thread"], []).append(row)
    longest = sorted(found.values(), key=len, reverse=True)[:THREADS]
    return sorted(longest, key=lambda rows: str(rows[0]["id"]))


def thread_of(rows: list[Row]) -> Thread:
    return Thread(thread=rows[0]["thread"], mails=tuple(Mail(**row) for row in rows))


def expected(rows: list[Row]) -> tuple[str, dict[str, Any]]:
    """The sink and the fields of a thread's digest, counted in another way than `Findings` does."""
    read: list[EnrichedMail] = [
        agents.enrich(agents.classify(Mail(**row), job_context()), job_context()) for row in rows
    ]
    open_questions: list[Any] = []
    for mail in reversed([m for m in read if m.label != "spam"]):
        if not mail.asks:
            break
        open_questions.insert(0, mail.id)
    named = Counter(pair for mail in read for pair in _named(mail))
    by_count = sorted(sorted(named), key=named.__getitem__, reverse=True)
    return "unanswered" if open_questions else "digests", {
        "thread": read[0].thread,
        "subject": read[0].thread_subject,
        "mails": len(rows),
        "unread": 0,
        "addresses": len({a for mail in read for a in mail.entities.addresses}),
        "lists": sorted({row["list"] for row in rows} - {None}),
        "span": _span(rows),
        "labels": _counts(m.label for m in read),
        "topics": _counts(m.topic for m in read),
        "languages": _counts(m.language for m in read),
        "priority": next(p for p in ("high", "normal", "low") if p in {m.priority for m in read}),
        "named": [{"kind": k, "text": t, "mails": named[k, t]} for k, t in by_count[:10]],
        "open_questions": open_questions[-10:],
    }


def _named(mail: EnrichedMail) -> list[tuple[str, str]]:
    found = mail.entities
    return [
        *(("url", text) for text in found.urls),
        *(("address", text) for text in found.addresses),
        *(("money", f"{money.currency}{money.amount}") for money in found.money),
        *(("phone", text) for text in found.phones),
    ]


def _span(rows: list[Row]) -> dict[str, Any]:
    """Half a year around the median; all mails of the sample have dates."""
    dates = [datetime.fromisoformat(row["date"]) for row in rows]
    median = statistics.median_low(dates)
    near = [date for date in dates if median - CLOCK <= date <= median + CLOCK]
    first, last = (f"{date:%Y-%m-%dT%H:%M:%S}Z" for date in (min(near), max(near)))
    return {"first": first, "last": last, "wrong_clocks": len(dates) - len(near)}


def _counts(found: Iterable[str]) -> dict[str, int]:
    return {str(name): n for name, n in Counter(found).items()}
