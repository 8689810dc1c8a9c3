"""`handoff audit` of a flow that forks: runs that are well raise nothing, each fault has its name.

Faults are forged on the records and tables of real runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas import headers as h
from schemas.ids import child_id
from streams.audit import Options, audited, run
from streams.config import Settings
from tests.support import forking_twice
from tests.support.audits import forge, pairs, project, state_bytes, truncate
from tests.support.commands import Command
from tests.support.forking import MENDED, Whole, flow
from tests.support.rig import Rig, job_id
from tests.support.topics import Record

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, flow) as made:
        yield made


def at_rest(rig: Rig, *stages: str) -> None:
    """Everything is consumed, or what `stages` read is, and projected; workers are stopped."""
    rig.wait_drained(*(stages or flow.inputs))
    project(rig)
    for worker in rig.workers:
        if worker.running:
            assert worker.stop() == 0


def clean(rig: Rig, **options: Any) -> None:
    with audited(rig.settings, Options(**options)) as verdict:
        assert list(verdict.findings()) == []


def judged(rig: Rig) -> set[tuple[str, str]]:
    with audited(rig.settings) as verdict:
        return pairs(verdict)


def first_of(rig: Rig, job: str) -> Record:
    """The first record of a child."""
    return next(r for r in rig.records("part") if r.job == job)


def end_of(rig: Rig, job: str) -> Record:
    """What its parent's join is told of a child."""
    parent, _, n = job.rpartition("/")
    wanted = n.encode() + b";"
    return next(
        r
        for r in rig.records("join")
        if r.job == parent and r.headers[0][0] == h.ARRIVAL and r.headers[0][1].startswith(wanted)
    )


# -- runs that are well ----------------------------------------------------------------------------


def test_forks_within_forks_raise_nothing_while_they_run_and_when_they_are_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sources", "postgres_facts"):
        monkeypatch.setattr(f"streams.audit.{module}.SINCE_MARGIN_MS", 0)
    worker = rig.worker(app=APP)
    rig.submit([Whole(n=n, parts=n % 6, depth=n % 3, wait_ms=n % 50) for n in range(60)])
    since_ms, kills = 0, 0
    while rig.finished() < 60:
        clean(rig)
        if kills < 2:
            worker.kill()
            worker = rig.worker(app=APP)
            kills += 1
            since_ms = time.time_ns() // 1_000_000
    at_rest(rig)
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert verdict.horizon == {}
        assert verdict.jobs.done == verdict.jobs.accepted == len({s.trace_id for s in rig.states()})
    clean(rig, flow=flow.name)
    clean(rig, since_ms=since_ms)


def test_every_rule_waiting_failed_reopened_and_late_raises_nothing(
    rig: Rig, tmp_path: Path
) -> None:
    """Goal: no false alarm. Method: joins that wait for a dead letter, fail by one, take errors,
    or run out of time; looked at then, after those that failed were redriven, and after the dead
    letters of branches were."""
    rig.worker(app=APP)
    jobs = [
        Whole(n=0, parts=4, bad=(1,)),
        Whole(n=1, parts=4, bad=(2,), on_missing="fail"),
        Whole(n=2, parts=4, bad=(0, 3), on_missing="errors"),
        Whole(n=3, parts=3, lost=(1,), on_missing="errors", timeout_s=1),
        Whole(n=4, parts=3, lost=(2,), timeout_s=1),
        Whole(n=5, parts=3, lost=(0,)),
        # Its time is up when it is long over.
        Whole(n=6, parts=2, timeout_s=3),
    ]
    ids = rig.submit(jobs)
    rig.wait(lambda: len(rig.dead_letters("join")) == 2, "two joins have failed")
    rig.wait_results(3)
    project(rig)
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert verdict.jobs.waiting == 2
    rig.target.open("lost")
    rig.wait_results(4)
    deadlines = lambda: [r for r in rig.records("join") if r.header(h.TIMER)]  # noqa: E731
    rig.wait(lambda: len(deadlines()) == 3, "all deadlines are over")
    at_rest(rig)
    clean(rig)
    handoff = Command(rig.settings, tmp_path)
    assert handoff("dlq", "redrive", "--filter", "stage=join", "--yes").returncode == 0
    rig.variables[MENDED] = "1"
    rig.worker(app=APP)
    rig.wait_results(5)
    at_rest(rig)
    clean(rig)
    assert handoff("dlq", "redrive", "--filter", "stage=part", "--yes").returncode == 0
    rig.worker(app=APP)
    rig.wait_results(7)
    at_rest(rig)
    clean(rig)
    steps = [(s.seq, s.stage, str(s.status)) for s in rig.states() if s.trace_id == ids[1]]
    reopened = [(3, "join", "waiting"), (4, "join", "running"), (5, "gather", "done")]
    assert steps == [(1, "split", "waiting"), (2, "join", "failed"), *reopened]


def test_jobs_that_fork_twice_and_records_that_are_none_of_a_join_raise_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, forking_twice.flow) as rig:
        rig.worker(app="tests.support.forking_twice:flow")
        rig.put("join", b"order-17", b"{}", [(h.ARRIVAL, b"1;done;1")])
        rig.put("join", job_id(9_000).encode(), b"no JSON", [(h.HOP, b"1;17;twice")])
        rig.put("join", job_id(9_001).encode(), None)
        rig.flush()
        ids = rig.submit([Whole(n=n, parts=n % 5) for n in range(30)])
        while rig.finished() < 30:
            clean(rig)
        rig.wait_drained(*forking_twice.flow.inputs * 2)
        project(rig)
        clean(rig)
        assert len(rig.dead_letters("join")) == 2
        forks = [s.fork for s in rig.states() if s.trace_id == ids[4] and s.fork is not None]
        assert [(f.first, f.expected) for f in forks] == [(0, 4), (4, 5)]
        end = end_of(rig, f"{ids[4]}/7")
        truncate(rig, rig.topic("join"), end.partition, end.offset + 1)
        # What was joined since owes nothing any more; the sets in Postgres are not judged.
        assert {rule for rule, _ in judged(rig)} == {"topic_truncated"}


def test_reruns_whose_children_stand_for_others_raise_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.worker(app=APP)
    ids = rig.submit([Whole(n=n, parts=3, depth=n % 2, effect=True) for n in range(3)])
    rig.wait_results(3)
    rig.wait_drained(*flow.inputs * 2)
    project(rig)
    handoff = Command(rig.settings, tmp_path)
    for job, stage in zip(ids, ("split", "split", "gather"), strict=True):
        args = ("--from", stage, "--effects", "same", "--app", APP)
        assert handoff("jobs", "rerun", job, *args).returncode == 0
    rig.wait_results(6)
    rig.wait_drained(*flow.inputs * 2)
    project(rig)
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert verdict.jobs.done == verdict.jobs.accepted


#: What the audit does in this order; before each, branches come and joins go on.
_PHASES = (
    "streams.audit.run.Snapshot.read",
    "streams.audit.run.positions",
    "streams.audit.run.TopicFacts.read_states",
    "streams.audit.run.TopicFacts.read_hand_offs",
    "streams.audit.run.TopicFacts.write_parts",
    "streams.audit.run.SecondLook.take",
)


def test_branches_that_come_between_any_two_readings_raise_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the order of the readings. Method: at each of them two jobs' last branches pass a gate
    and are joined, a branch of another comes, and new jobs fork, before the audit reads on."""
    rig.worker("split", "part", "regather", "gather", "join", app=APP)
    # Groups have their positions asked for one by one.
    groups = [f"{phase} {n}" for phase in _PHASES for n in range(1, len(flow.inputs) + 1)]
    whole = [
        Whole(n=2 * n + k, parts=3, lost=(k, 2), gate=gate)
        for n, gate in enumerate(groups)
        for k in (0, 1)
    ]
    rig.submit(whole)
    rig.wait(lambda: sum(map(rig.target.waiting, groups)) == 4 * len(groups), "all are at gates")
    calls: list[str] = []

    def hooked(phase: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(phase)
            before = rig.finished()
            n = 1_000 + 2 * len(calls)
            rig.submit([Whole(n=n, parts=2), Whole(n=n + 1, parts=2, lost=(0,), gate="never")])
            rig.target.open(f"{phase} {calls.count(phase)}")
            rig.wait_results(before + 3)
            return original(*args, **kwargs)

        return call

    for phase in _PHASES:
        module, _, name = phase.removeprefix("streams.audit.run.").rpartition(".")
        owner = getattr(run, module) if module else run
        monkeypatch.setattr(owner, name, hooked(phase, getattr(owner, name)))
    clean(rig)
    assert set(calls) == set(_PHASES)


# -- faults ----------------------------------------------------------------------------------------


def test_children_that_were_removed_before_they_ran_are_lost(rig: Rig) -> None:
    ids = rig.submit([Whole(n=n, parts=4) for n in range(10)])
    rig.worker("split", "join", "projector", app=APP)
    rig.wait_drained("split", "join")
    rig.wait(lambda: len(rig.records("part")) == 40, "all have forked")
    at_rest(rig, "split", "join")
    assert judged(rig) == set()
    gone = [r for r in rig.records("part") if r.partition == 2]
    truncate(rig, rig.topic("part"), 2, gone[-1].offset + 1)
    assert judged(rig) == {("branch_lost", r.job) for r in gone} | {("removed_unread", "")}
    assert {r.job.partition("/")[0] for r in gone} <= set(ids)


def test_ends_that_were_removed_before_they_were_joined_are_lost(rig: Rig) -> None:
    ids = rig.submit([Whole(n=n, parts=3) for n in range(10)])
    rig.worker("split", "part", "projector", app=APP)
    rig.wait(lambda: len(rig.records("join")) == 40, "all branches are over")
    at_rest(rig, "split", "part")
    assert judged(rig) == set()
    ends = [r for r in rig.records("join") if r.headers[0][0] == h.ARRIVAL]
    cut = [r for r in ends if r.partition == ends[0].partition][:2]
    truncate(rig, rig.topic("join"), cut[1].partition, cut[1].offset + 1)
    whole = rig.log(rig.topic("join"))
    lost = {r for r in whole if r.partition == cut[1].partition and r.offset <= cut[1].offset}
    expected = {("removed_unread", "")}
    for r in lost:
        name, value = r.headers[0]
        told = name == h.ARRIVAL
        number = int((value or b"").split(b";")[0])
        expected.add(("branch_lost", child_id(r.job, number)) if told else ("hand_off_lost", r.job))
    assert judged(rig) == expected
    assert {r.job for r in lost} <= set(ids)


def test_a_group_that_was_moved_past_its_branches_has_lost_the_joins(rig: Rig) -> None:
    whole = [Whole(n=n, parts=3) for n in range(8)]
    whole += [Whole(n=8, parts=3, bad=(1,)), Whole(n=9, parts=3, bad=(1,), on_missing="fail")]
    whole += [Whole(n=10, parts=3, bad=(1,), on_missing="errors")]
    ids = rig.submit(whole)
    rig.worker("split", "part", "projector", app=APP)
    rig.wait(lambda: len(rig.records("join")) == 11 * 4, "all branches are over")
    at_rest(rig, "split", "part")
    assert judged(rig) == set()
    records = rig.records("join")
    ends = {p: max([r.offset + 1 for r in records if r.partition == p] or [0]) for p in range(4)}
    rig.set_committed("join", {p: (end, "") for p, end in ends.items()})
    # The ninth waits for a redrive, as it should, but Postgres knows nothing of it.
    lost = {("join_lost", i) for n, i in enumerate(ids) if n != 8}
    assert judged(rig) == lost | {("join_differs", ids[8])}


def test_copies_and_strangers_are_named(rig: Rig) -> None:
    ids = rig.submit([Whole(n=n, parts=3) for n in range(12)])
    rig.worker(app=APP)
    rig.wait_results(12)
    at_rest(rig)
    assert judged(rig) == set()
    started, told = first_of(rig, f"{ids[0]}/1"), end_of(rig, f"{ids[1]}/2")
    forge(rig, rig.topic("part"), started.job, started.value or b"", started.headers)
    forge(rig, rig.topic("join"), told.job, told.value or b"", told.headers)
    stranger = job_id(7_777)
    hop = (h.HOP, b"0;1700000000000000;forking")
    forge(rig, rig.topic("part"), f"{stranger}/0", b'{"n": 0}', [(h.FORK, b"1"), hop])
    forge(rig, rig.topic("part"), f"{ids[2]}/3", b'{"n": 3}', [(h.FORK, b"1"), hop])
    forge(rig, rig.topic("part"), f"{ids[3]}/0", b'{"n": 0}', [(h.FORK, b"3"), hop])
    forge(rig, rig.topic("join"), stranger, b"{}", [(h.ARRIVAL, b"5;done;1")])
    forge(rig, rig.topic("join"), ids[4], b"{}", [(h.ARRIVAL, b"1;failed;1")])
    job_state = rig.settings.names.job_state_topic
    forge(rig, job_state, ids[5], state_bytes(rig, ids[5], 2))
    handed = next(r for r in rig.records("gather") if r.job == ids[6])
    forge(rig, rig.topic("gather"), ids[6], handed.value or b"", handed.headers)
    forge(rig, job_state, ids[7], state_bytes(rig, ids[7], 2, seq=4, to=[]))
    assert judged(rig) == {
        ("branch_doubled", f"{ids[0]}/1"),
        ("branch_doubled", f"{ids[1]}/2"),
        ("branch_orphan", f"{stranger}/0"),
        ("branch_orphan", f"{ids[2]}/3"),
        ("branch_orphan", f"{ids[3]}/0"),
        ("branch_orphan", f"{stranger}/5"),
        ("branch_orphan", f"{ids[4]}/1"),
        ("join_doubled", ids[5]),
        ("join_doubled", ids[6]),
        ("join_doubled", ids[7]),
        ("step_after_end", ids[7]),
    }


def test_sets_in_postgres_are_held_against_the_topic(rig: Rig) -> None:
    ids = rig.submit([Whole(n=n, parts=3) for n in range(8)])
    rig.worker(app=APP)
    rig.wait_results(8)
    at_rest(rig)
    assert judged(rig) == set()
    rig.sql("DELETE FROM joins WHERE parent = %s", ids[0])
    rig.sql("UPDATE joins SET status = 'open' WHERE parent = %s", ids[1])
    rig.sql("UPDATE joins SET expected = 2 WHERE parent = %s", ids[2])
    rig.sql("UPDATE joins SET done = 2, failed = 1 WHERE parent = %s", ids[3])
    rig.sql("DELETE FROM join_arrivals WHERE parent = %s AND branch = 1", ids[4])
    rig.sql("UPDATE join_arrivals SET value = '{}' WHERE parent = %s AND branch = 2", ids[5])
    stranger = job_id(7_777)
    rig.sql("UPDATE joins SET parent = %s WHERE parent = %s", stranger, ids[6])
    assert judged(rig) == {
        *(("join_differs", i) for i in (*ids[:4], ids[6], stranger)),
        ("join_differs", f"{ids[4]}/1"),
        ("join_differs", f"{ids[5]}/2"),
    }


def test_a_join_that_did_not_wait_for_a_branch_is_incomplete(rig: Rig) -> None:
    """Somebody makes a failed branch a done one in Postgres, and the agent believes it."""
    (parent,) = rig.submit([Whole(n=0, parts=3, lost=(1,), bad=(2,))])
    rig.worker(app=APP)
    ends = "SELECT branch FROM join_arrivals WHERE parent = %s"
    rig.wait(lambda: len(rig.sql(ends, parent)) == 2, "two branches have come")
    rig.sql("UPDATE join_arrivals SET status = 'done' WHERE parent = %s AND branch = 2", parent)
    # As bits: branches 0 and 2 are done, none has failed.
    rig.sql(r"UPDATE joins SET done_set = '\x05', failed_set = '\x00' WHERE parent = %s", parent)
    rig.target.open("lost")
    rig.wait(lambda: rig.dead_letters("gather"), "it was joined, and an error is no result")
    at_rest(rig)
    assert judged(rig) == {("join_incomplete", parent), ("join_differs", f"{parent}/2")}
