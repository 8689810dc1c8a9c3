"""Random runs with random damage: the audit and the second opinion say the same.

The seed decides everything but the order in which workers happen to finish; it is in the test's
name. `AUDIT_RUNS` is the number of runs, each of some 12 s: 10 show what is promised, the first few
are part of every run of the suite.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from schemas import headers as h
from streams.audit import audited
from streams.config import Settings
from tests.support.audits import forge, pairs, project, state_bytes
from tests.support.flows import Job
from tests.support.rig import Rig, job_id
from tests.support.second_opinion import KNOWN, opinion

pytestmark = pytest.mark.services


def some_job(rng: random.Random, n: int) -> Job:
    fault = rng.choice(["", "", "", "retry", "reject", "raise"])
    return Job(n=n, wait_ms=rng.random() * 60, fault=fault, effect=rng.choice(["", "repeatable"]))


def damage_topics(rig: Rig, rng: random.Random, ids: list[str]) -> None:
    """One accident in Kafka."""
    states = rig.settings.names.job_state_topic
    one, stranger = rng.choice(ids), job_id(rng.randrange(10_000, 20_000))
    match rng.randrange(6):
        case 0:
            stage = rng.choice(["work", "finish", "done"])
            copied = rng.choice(rig.records(stage))
            forge(rig, rig.topic(stage), copied.job, copied.value or b"", copied.headers)
        case 1:
            forge(rig, rig.topic("done"), stranger, b"{}", [(h.HOP, b"3;1700000000000000;run")])
        case 2:
            forge(rig, states, one, state_bytes(rig, one, 1))
        case 3:
            forge(rig, states, one, state_bytes(rig, one, 1, seq=9))
        case 4:
            forge(rig, states, stranger, state_bytes(rig, one, 1, traceId=stranger))
        case _:
            letter = rng.choice(rig.dead_letters("work"))
            headers = [(k, stranger.encode() if k == h.DLQ_JOB else v) for k, v in letter.headers]
            topic = rig.settings.names.dead_letter_topic(rig.flow.name, "work")
            forge(rig, topic, stranger, b"{}", headers)


def damage_tables(rig: Rig, rng: random.Random, ids: list[str]) -> None:
    """One accident in Postgres."""
    statement = rng.choice(
        [
            "DELETE FROM jobs WHERE trace_id = %s",
            "UPDATE jobs SET attempts = attempts + 1 WHERE trace_id = %s",
            "DELETE FROM job_history WHERE trace_id = %s AND seq = 1",
        ]
    )
    rig.sql(statement, rng.choice(ids))


@pytest.mark.parametrize("seed", range(int(os.environ.get("AUDIT_RUNS", "4"))))
def test_two_judges_agree(settings: Settings, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Rig(settings, tmp_path) as rig:
        worker = rig.worker()
        ids = rig.submit([some_job(rng, n) for n in range(150)])
        for _ in range(rng.randrange(10)):
            mark = rig.finished() + rng.randrange(5, 15)
            rig.wait(lambda least=mark: rig.finished() >= least or rig.drained(), "progress")
            worker.kill()
            worker = rig.worker()
        rig.wait_drained()
        project(rig)
        with audited(rig.settings) as verdict:
            assert pairs(verdict) == opinion(rig) == set()
        for _ in range(5):
            damage_topics(rig, rng, ids)
        # Copies are consumed, forged states projected.
        rig.wait_drained()
        project(rig)
        assert worker.stop() == 0
        for _ in range(10):
            damage_tables(rig, rng, ids)
        with audited(rig.settings) as verdict:
            mine = pairs(verdict)
        assert {x for x in mine if x[0] in KNOWN} == opinion(rig)
        assert mine
