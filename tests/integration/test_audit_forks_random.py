"""Random runs that fork, with random damage: the audit and a second opinion say the same.

As `test_audit_random`; `AUDIT_FORK_RUNS` is the number of runs, each of some 20 s.
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
from tests.support.forking import Whole, flow
from tests.support.rig import Rig, job_id
from tests.support.second_opinion_forks import KNOWN, opinion

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"
#: Joins hand on to stages, which may end a branch.
ALL = flow.inputs * 2
HOP = (h.HOP, b"0;1700000000000000;forking")


def some_job(rng: random.Random, n: int) -> Whole:
    parts = rng.randrange(5)
    return Whole(
        n=n,
        parts=parts,
        depth=rng.choice([0, 0, 1]),
        bad=tuple(k for k in range(parts) if rng.random() < 0.2),
        wait_ms=rng.random() * 60,
        on_missing=rng.choice(["wait", "fail", "errors"]),
        timeout_s=rng.choice([None, None, 0.1, 1]),
    )


def wait_settled(rig: Rig) -> None:
    """Wait until every deadline is over and nothing is left to do."""
    timers = f"{rig.settings.prefix}timers"

    def over() -> bool:
        came = sum(1 for r in rig.records("join") if r.header(h.TIMER))
        return rig.drained(*ALL) and came == len(rig.log(timers)) and rig.drained(*ALL)

    rig.wait(over, "all is consumed, and no fork has a deadline any more")


def damage_topics(rig: Rig, rng: random.Random, ids: list[str]) -> None:
    """One accident in Kafka; what is a record of a stage is consumed."""
    ends = [r for r in rig.records("join") if r.headers[0][0] == h.ARRIVAL]
    joined = [s.trace_id for s in rig.states() if (s.stage, s.seq, len(s.to)) == ("join", 2, 1)]
    number, stranger = rng.randrange(5), job_id(rng.randrange(10_000, 20_000))
    match rng.randrange(7):
        case 0:
            copied = rng.choice([r for r in rig.records("part") if r.headers[0][0] == h.FORK])
            forge(rig, rig.topic("part"), copied.job, copied.value or b"", copied.headers)
        case 1:
            copied = rng.choice(ends)
            forge(rig, rig.topic("join"), copied.job, copied.value or b"", copied.headers)
        case 2:
            headers = [(h.FORK, b"1"), HOP]
            forge(rig, rig.topic("part"), f"{stranger}/{number}", b'{"n": 1}', headers)
        case 3:
            headers = [(h.ARRIVAL, b"%d;done;1" % number)]
            forge(rig, rig.topic("join"), stranger, b"{}", headers)
        case 4:
            headers = [(h.ARRIVAL, b"%d;done;9" % number)]
            value = b'{"n": 1, "by": "somebody"}'
            forge(rig, rig.topic("join"), rng.choice(ids), value, headers)
        case 5:
            one = rng.choice(joined)
            forge(rig, rig.settings.names.job_state_topic, one, state_bytes(rig, one, 2))
        case _:
            copied = rng.choice([r for r in rig.records("gather") if r.seq == 2])
            forge(rig, rig.topic("gather"), copied.job, copied.value or b"", copied.headers)


def damage_tables(rig: Rig, rng: random.Random, ids: list[str]) -> None:
    """One accident in Postgres."""
    statement = rng.choice(
        [
            "DELETE FROM joins WHERE parent = %s",
            "UPDATE joins SET status = 'open' WHERE parent = %s",
            "DELETE FROM join_arrivals WHERE parent = %s AND branch = 1",
            "UPDATE join_arrivals SET value = '{}' WHERE parent = %s AND branch = 0",
            "UPDATE join_arrivals SET seq = seq + 1 WHERE parent = %s AND branch = 2",
        ]
    )
    rig.sql(statement, rng.choice(ids))


@pytest.mark.parametrize("seed", range(int(os.environ.get("AUDIT_FORK_RUNS", "2"))))
def test_two_judges_agree_on_forks(settings: Settings, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Rig(settings, tmp_path, flow) as rig:
        worker = rig.worker(app=APP)
        ids = rig.submit([some_job(rng, n) for n in range(80)])
        for _ in range(rng.randrange(1, 4)):
            mark = rig.finished() + rng.randrange(5, 15)
            rig.wait(lambda least=mark: rig.finished() >= least or rig.drained(*ALL), "progress")
            worker.kill()
            worker = rig.worker(app=APP)
        wait_settled(rig)
        project(rig)
        with audited(rig.settings) as verdict:
            assert pairs(verdict) == opinion(rig) == set()
        for _ in range(6):
            damage_topics(rig, rng, ids)
        wait_settled(rig)
        project(rig)
        assert worker.stop() == 0
        for _ in range(8):
            damage_tables(rig, rng, ids)
        with audited(rig.settings) as verdict:
            mine = pairs(verdict)
        assert {x for x in mine if x[0] in KNOWN} == opinion(rig)
        assert mine
