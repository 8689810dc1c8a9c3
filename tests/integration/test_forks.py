"""Goal: a fork's results are joined once, all of them, in order, whatever dies meanwhile.

Method: real workers on `split` → `part`s → `gather`; judged by what lies in the topics, by the
target's own record, and by the audit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import headers as h
from schemas.state import Status
from streams.config import Settings
from streams.deadletter import redrive
from streams.kafka.partitioner import partition_of
from tests.support.forking import MENDED, Sum, Whole, flow
from tests.support.judge import assert_no_step_twice, doubles
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


def steps(rig: Rig, job: str) -> list[tuple[int, str, Status]]:
    return [(s.seq, s.stage, s.status) for s in rig.states() if s.trace_id == job]


def failed(rig: Rig, stage: str) -> list[str]:
    return [(r.header("handoff_dlq_job") or b"").decode() for r in rig.dead_letters(stage)]


def redrive_all(rig: Rig, ids: list[str]) -> None:
    report = asyncio.run(redrive(rig.settings, ids, who="test"))
    assert (report.redriven, report.refused) == (len(ids), [])


def test_a_failed_branch_holds_the_join_until_it_is_redriven(rig: Rig) -> None:
    worker = rig.worker(app=APP)
    ids = rig.submit([Whole(n=0, parts=6, bad=(1, 4)), Whole(n=1, parts=3)])
    rig.wait_results(1)
    rig.wait(lambda: len(failed(rig, "part")) == 2, "two branches have failed")
    rig.wait_drained()
    assert set(sums(rig)) == {ids[1]}
    assert worker.stop() == 0
    rig.variables[MENDED] = "yes"
    rig.worker(app=APP)
    redrive_all(rig, [f"{ids[0]}/1", f"{ids[0]}/4"])
    rig.wait_results(2)
    assert [p.n for p in sums(rig)[ids[0]].pieces] == list(range(6))
    branch = steps(rig, f"{ids[0]}/4")
    assert branch == [(1, "part", Status.FAILED), (2, "part", Status.DONE)]


def test_fail_fast_and_redriven(rig: Rig) -> None:
    worker = rig.worker(app=APP)
    (job,) = rig.submit([Whole(n=0, parts=5, bad=(2,), on_missing="fail")])
    rig.wait(lambda: failed(rig, "join") == [job], "the join has failed")
    (letter,) = rig.dead_letters("join")
    assert b"/2 failed" in (letter.header("__dlq.errors.message") or b"")
    assert steps(rig, job) == [(1, "split", Status.WAITING), (2, "join", Status.FAILED)]
    assert worker.stop() == 0
    # The join's letter first: it then waits for the branch.
    rig.variables[MENDED] = "yes"
    rig.worker(app=APP)
    redrive_all(rig, [job])
    rig.wait(lambda: len(steps(rig, job)) == 3, "the join is open again")
    assert steps(rig, job)[-1] == (3, "join", Status.WAITING)
    redrive_all(rig, [f"{job}/2"])
    rig.wait_results(1)
    assert [p.n for p in sums(rig)[job].pieces] == list(range(5))
    assert steps(rig, job)[3:] == [(4, "join", Status.RUNNING), (5, "gather", Status.DONE)]


def test_a_failed_join_whose_branches_have_come_meanwhile_goes_on_at_once(rig: Rig) -> None:
    worker = rig.worker(app=APP)
    (job,) = rig.submit([Whole(n=0, parts=4, bad=(0, 3), on_missing="fail")])
    rig.wait(lambda: len(failed(rig, "part")) == 2, "both branches have failed")
    rig.wait(lambda: failed(rig, "join") == [job], "the join has failed")
    assert worker.stop() == 0
    rig.variables[MENDED] = "yes"
    rig.worker(app=APP)
    redrive_all(rig, [f"{job}/0", f"{job}/3"])
    rig.wait(lambda: len(steps(rig, f"{job}/3")) == 2, "the branches are done")
    rig.wait_drained("part", "join")
    redrive_all(rig, [job])
    rig.wait_results(1)
    assert [p.n for p in sums(rig)[job].pieces] == list(range(4))
    assert steps(rig, job)[2:] == [(3, "join", Status.RUNNING), (4, "gather", Status.DONE)]


def test_errors_stand_in_the_place_of_results(rig: Rig) -> None:
    rig.worker(app=APP)
    (job,) = rig.submit([Whole(n=0, parts=4, bad=(0, 3), on_missing="errors")])
    rig.wait_results(1)
    found = sums(rig)[job]
    assert [p.n for p in found.pieces] == [1, 2]
    assert (found.failed, found.missing) == ((f"{job}/0", f"{job}/3"), ())


def test_a_deadline_fails_the_job_or_joins_what_is_there(rig: Rig) -> None:
    rig.worker(app=APP)
    ids = rig.submit(
        [
            Whole(n=0, parts=3, lost=(1,), timeout_s=0.5),
            Whole(n=1, parts=3, lost=(1,), timeout_s=0.5, on_missing="errors"),
            Whole(n=2, parts=3, timeout_s=0.5),
        ]
    )
    rig.wait_results(2)
    rig.wait(lambda: failed(rig, "join") == [ids[0]], "the join has failed")
    found = sums(rig)
    assert found[ids[1]].missing == (f"{ids[1]}/1",)
    assert [p.n for p in found[ids[1]].pieces] == [0, 2]
    assert [p.n for p in found[ids[2]].pieces] == [0, 1, 2]
    # What comes too late changes nothing.
    rig.target.open("lost")
    rig.wait(lambda: rig.target.waiting("lost") == 0, "the late branches go on")
    rig.wait_drained()
    rig.wait(lambda: len(rig.sql("SELECT 1 FROM join_arrivals WHERE late")) == 1, "one is late")
    assert found == sums(rig)
    (letter,) = rig.dead_letters("join")
    told = letter.header("__dlq.errors.message") or b""
    assert b"2 were done" in told
    assert b"/1 has not come" in told


def test_what_is_no_record_of_a_join_is_a_dead_letter(rig: Rig) -> None:
    rig.worker(app=APP)
    rig.put("join", b"junk", b"junk")
    rig.put("join", job_id(5).encode(), b"{}", [(h.ARRIVAL, b"1;running;1")])
    rig.put("join", job_id(5).encode(), b"{}", [(h.HOP, b"1;1700000000000000;forking")])
    rig.put("join", job_id(6).encode(), None)
    rig.flush()
    rig.wait(lambda: len(rig.dead_letters("join")) == 3, "three dead letters")
    rig.submit([Whole(n=0, parts=2)])
    rig.wait_results(1)
    told = [(r.header("__dlq.errors.message") or b"").decode() for r in rig.dead_letters("join")]
    assert sum("no job id" in t for t in told) == 1
    assert sum(h.ARRIVAL in t for t in told) == 1
    assert sum("no expectation" in t for t in told) == 1


def test_a_hot_join_does_not_hold_up_others_of_its_partition(rig: Rig) -> None:
    """2,000 branches come in while 20 small joins of the same partition are done."""
    rig.worker(app=APP)
    hot, ids = job_id(0), [job_id(n) for n in range(1, 400)]
    rig.submit([Whole(n=0, parts=2_000, lost=(0,), wait_ms=5)])
    rig.wait(lambda: rig.records("join"), "the hot join is expected")
    partition = rig.records("join")[0].partition
    beside = [i for i in ids if partition_of(i.encode(), rig.settings.partitions) == partition][:20]
    rig.submit([Whole(n=n, parts=3) for n in range(1, 21)], beside)
    rig.wait_results(20)
    assert set(sums(rig)) == set(beside)
    assert {r.partition for r in rig.records("join") if r.job in beside} == {partition}
    rig.target.open("lost")
    rig.wait_results(21)
    assert len(sums(rig)[hot].pieces) == 2_000


def test_killed_again_and_again(rig: Rig) -> None:
    """Three SIGKILLs of both workers in turn, each with branches in work."""
    first, second = rig.worker(app=APP, slot=0), rig.worker(app=APP, slot=1)
    ids = rig.submit([Whole(n=n, parts=40, wait_ms=40, effect=True) for n in range(30)])
    for count in (200, 500, 800):
        rig.wait(lambda count=count: len(rig.records("join")) >= count, f"{count} have come")
        first.kill()
        first, second = second, rig.worker(app=APP, slot=first.slot)
    rig.wait_results(len(ids))
    rig.wait_drained(*flow.inputs)
    found = sums(rig)
    for job in ids:
        assert [p.n for p in found[job].pieces] == list(range(40))
    assert_no_step_twice(rig)
    assert doubles(r.job for r in rig.records("part") if r.header(h.FORK)) == {}
    assert len(rig.target.effects) == 30 * 40


def test_the_sets_are_made_again_from_the_topic(rig: Rig) -> None:
    """Postgres has lost its joins: the group goes back to the beginning, and nothing is joined a
    second time."""
    worker = rig.worker(app=APP)
    ids = rig.submit(
        [Whole(n=n, parts=5, lost=(2,) if n < 3 else ()) for n in range(6)],
    )
    rig.wait_results(3)
    rig.wait(lambda: rig.target.waiting("lost") == 3, "three joins are open")
    rig.wait_drained("join")
    worker.kill()
    rig.sql("TRUNCATE joins, join_arrivals")
    rig.wait(lambda: rig.is_empty("join"), "the group is empty")
    rig.set_committed("join", dict.fromkeys(range(rig.settings.partitions), (0, "")))
    rig.worker(app=APP)
    rig.target.open("lost")
    rig.wait_results(6)
    rig.wait_drained(*flow.inputs)
    assert set(sums(rig)) == set(ids)
    assert_no_step_twice(rig)
