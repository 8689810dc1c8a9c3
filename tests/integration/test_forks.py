"""Goal: a fork's results are joined once, all of them, in order, whatever dies meanwhile.

Method: real workers on `split` → `part`s → `gather`; judged by what lies in the topics, by the
target's own record, and by the audit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.state import Status
from streams.config import Settings
from tests.support.forking import Sum, Whole, flow
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, flow) as made:
        yield made


def sums(rig: Rig) -> dict[str, Sum]:
    found = [(r.job, Sum.model_validate_json(r.value or b"")) for r in rig.records("done")]
    assert len(found) == len(dict(found)), "each job is joined once"
    return dict(found)


def test_results_come_in_order_and_once(rig: Rig) -> None:
    rig.worker(app=APP)
    ids = rig.submit([Whole(n=n, parts=n) for n in range(20)])
    rig.wait_results(20)
    found = sums(rig)
    for n, trace_id in enumerate(ids):
        assert [(p.n, p.by) for p in found[trace_id].pieces] == [
            (k, f"{trace_id}/{k}") for k in range(n)
        ]
    parent = [s for s in rig.states() if s.trace_id == ids[7]]
    assert [(s.seq, s.stage, s.status) for s in parent] == [
        (1, "split", Status.WAITING),
        (2, "join", Status.RUNNING),
        (3, "gather", Status.DONE),
    ]
    assert parent[0].fork is not None
    assert parent[0].fork.expected == 7


def test_forks_within_forks(rig: Rig) -> None:
    rig.worker(app=APP)
    (trace_id,) = rig.submit([Whole(n=0, parts=3, depth=2)])
    rig.wait_results(1)
    whole = sums(rig)[trace_id]
    assert [len(p.under) for p in whole.pieces] == [3, 3, 3]
    assert [q.by for p in whole.pieces for q in p.under[1].under] == [
        f"{trace_id}/{a}/1/{b}" for a in range(3) for b in range(3)
    ]
    assert job_id(0) == trace_id
