"""Goal: a job that forked is done again from any of its stages, and with the same effects no target
is called again, whichever child would.

Method: real workers on `split` → `part`s → `gather` → more `part`s → `total` → `report`, where each
part and the report do an effect; judged by the target's own record, the states and the results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas import headers as h
from schemas.ids import parent_of
from schemas.state import Status
from streams.audit import Options, audited
from streams.config import Settings
from streams.postgres import connect
from streams.rerun import parked_reruns
from tests.support.audits import project
from tests.support.commands import Command, Completed
from tests.support.judge import doubles, steps_by_job
from tests.support.letters import ran
from tests.support.rig import Rig
from tests.support.two_forks import MENDED, Bill, Order, flow

pytestmark = pytest.mark.services

APP = "tests.support.two_forks:flow"
PARTS = 3
#: Of both forks.
CHILDREN = 2 * PARTS + 1


class Town:
    """A rig, the command, and runs in it whose workers have stopped."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self._command = Command(rig.settings, folder)

    def run(self, over: int, orders: Sequence[Order] = ()) -> list[str]:
        """A worker until `over` jobs that are no children are over; the ids of `orders`."""
        worker = self.rig.worker(app=APP)
        ids = self.rig.submit(orders) if orders else []
        self.rig.wait(lambda: len(self.over()) == over, f"{over} jobs are over")
        self.rig.wait_drained(*flow.inputs)
        project(self.rig)
        assert worker.stop() == 0
        assert doubles((s.trace_id, s.seq) for s in self.rig.states()) == {}
        return ids

    def over(self) -> set[str]:
        last = {s.trace_id: s for s in self.rig.states()}
        return {s.trace_id for s in last.values() if s.status.terminal and s.parent is None}

    def handoff(self, *args: str) -> Completed:
        return self._command(*args)

    def rerun(self, job: str, stage: str, effects: str, *more: str, code: int = 0) -> Any:
        args = ("jobs", "rerun", job, "--from", stage, "--effects", effects, "--app", APP)
        done = ran(self.handoff(*args, "-o", "json", *more), code)
        return json.loads(done.stdout) if code == 0 else done.stderr

    @property
    def calls(self) -> Counter[str]:
        return Counter(key for key, _ in self.rig.target.calls)

    def told(self, job: str) -> list[tuple[int, str, Status]]:
        return [(s.seq, s.stage, s.status) for s in steps_by_job(self.rig.states())[job]]

    def children(self, job: str) -> set[str]:
        return {s.trace_id for s in self.rig.states() if s.parent == job}

    def bill(self, job: str) -> Bill:
        (record,) = (r for r in self.rig.records("done") if r.job == job)
        return Bill.model_validate_json(record.value or b"")


@pytest.fixture
def town(settings: Settings, tmp_path: Path) -> Iterator[Town]:
    with Rig(settings, tmp_path, flow) as rig:
        yield Town(rig, tmp_path)


FROM_TOTAL = [(1, "total", Status.RUNNING), (2, "report", Status.DONE)]
FROM_GATHER = [
    (1, "gather", Status.WAITING),
    (2, "join", Status.RUNNING),
    (3, "total", Status.RUNNING),
    (4, "report", Status.DONE),
]
FROM_SPLIT = [
    (1, "split", Status.WAITING),
    (2, "join", Status.RUNNING),
    *((n + 2, stage, status) for n, stage, status in FROM_GATHER),
]


def keys_of(job: str) -> Counter[str]:
    parts = [f"{job}/{n}:part:0:mark" for n in range(CHILDREN)]
    return Counter([*parts, f"{job}:report:0:report"])


def test_with_the_same_effects_no_target_is_called_again_from_whatever_stage(town: Town) -> None:
    (job,) = town.run(1, [Order(n=7, parts=PARTS)])
    assert town.told(job) == FROM_SPLIT
    assert town.calls == keys_of(job)
    again = {
        stage: town.rerun(job, stage, "same")["job"]
        for stage in ("split", "gather", "total", "report")
    }
    town.run(5)
    assert town.calls == keys_of(job), "nothing was done again"
    assert town.told(again["split"]) == FROM_SPLIT
    assert town.told(again["gather"]) == FROM_GATHER
    assert town.told(again["total"]) == FROM_TOTAL
    assert town.told(again["report"]) == [(1, "report", Status.DONE)]
    assert {town.bill(j).model_dump_json() for j in (job, *again.values())} == {
        town.bill(job).model_dump_json()
    }
    # Children are the rerun's own; those of a second fork go on counting where the original did.
    assert town.children(again["split"]) == {f"{again['split']}/{n}" for n in range(CHILDREN)}
    second = {f"{again['gather']}/{n}" for n in range(PARTS, CHILDREN)}
    assert town.children(again["gather"]) == second
    assert town.children(again["total"]) == set()
    # A rerun of such a rerun has the same keys still, and so has one of its children.
    more = [
        town.rerun(again["gather"], "gather", "same"),
        town.rerun(f"{again['split']}/4", "part", "same"),
    ]
    assert [m["keys_of"] for m in more] == [job, f"{job}/4"]
    town.run(7)
    assert town.calls == keys_of(job)
    # The effects that a child of a rerun was answered are shown with it; a replay finds them, too.
    child = f"{again['gather']}/5"
    shown = json.loads(ran(town.handoff("jobs", "show", child, "-o", "json")).stdout)
    assert [e["key"] for e in shown["effects"]] == [f"{job}/5:part:0:mark"]
    town.rig.sql("UPDATE jobs SET status = 'waiting' WHERE trace_id = %s", child)
    with connect(town.rig.settings) as conn:
        # Whoever settles an effect of the original's child is told of the rerun's.
        assert parked_reruns(conn, f"{job}/5", "part") == [child]
        assert parked_reruns(conn, f"{job}/4", "part") == parked_reruns(conn, job, "part") == []
    replayed = town.handoff("replay", "--trace", again["split"], "--app", APP, "-o", "json")
    assert json.loads(ran(replayed).stdout)["counts"]["same"] == 4 + CHILDREN


def test_with_new_effects_each_is_done_once_more_under_the_new_jobs_keys(town: Town) -> None:
    (job,) = town.run(1, [Order(n=7, parts=PARTS)])
    new = town.rerun(job, "split", "new")["job"]
    town.run(2)
    assert town.calls == keys_of(job) + keys_of(new)


def test_a_child_is_done_again_as_a_job_of_its_own_and_reports_to_no_join(town: Town) -> None:
    (job,) = town.run(1, [Order(n=7, parts=PARTS)])
    before = len(town.rig.records("join"))
    args = ("jobs", "rerun", f"{job}/1", "--from", "part", "--app", APP)
    said = ran(town.handoff(*args, "--effects", "same"))
    assert f"it does not report to the join of {job}" in said.stderr
    anew = town.rerun(f"{job}/1", "part", "new", "--label", "anew")["job"]
    town.run(3)
    assert len(town.rig.records("join")) == before
    assert town.told(job) == FROM_SPLIT, "the original is as it was"
    assert town.calls == keys_of(job) + Counter([f"{anew}:part:0:mark"])
    assert town.told(anew) == [(1, "part", Status.DONE)]
    assert parent_of(anew) is None
    equal = town.handoff("diff", f"{job}/1", anew)
    assert "They did the same" in ran(equal).stdout


def test_a_job_whose_join_failed_is_done_again_and_what_its_children_did_is_not(town: Town) -> None:
    (job,) = town.run(1, [Order(n=7, parts=PARTS, bad=(1,), on_missing="fail")])
    assert town.told(job)[-1] == (2, "join", Status.FAILED)
    assert f"{job}/1:part:0:mark" not in town.calls
    again = town.rerun(job, "split", "same")["job"]
    town.rig.variables[MENDED] = "1"
    town.run(2)
    assert town.told(again) == FROM_SPLIT
    assert town.calls == keys_of(job)
    # Of the second fork, which the original never came to, the keys are those that it would have
    # had; the audit knows whose they are.
    (row,) = town.rig.sql("SELECT count(*) AS n FROM jobs WHERE trace_id LIKE %s", f"{job}/%")
    assert row["n"] == PARTS
    with audited(town.rig.settings, Options()) as verdict:
        assert "effect_orphaned" not in {f.rule for f in verdict.findings()}


def test_an_expired_record_is_replaced_by_the_step_before_and_children_still_count_on(
    town: Town,
) -> None:
    (job,) = town.run(1, [Order(n=7, parts=PARTS)])
    town.rig.sql("UPDATE job_history SET consumed_topic_id = gen_random_uuid()")
    again = town.rerun(job, "gather", "same")
    assert again["input"] == "step 2 in job_history"
    town.run(2)
    (record,) = (r for r in town.rig.records("gather") if r.job == again["job"])
    assert record.header(h.CHILDREN) == str(PARTS).encode()
    assert town.calls == keys_of(job)


def test_what_cannot_be_rerun_is_refused_with_a_sentence(town: Town) -> None:
    (job,) = town.run(1, [Order(n=7, parts=PARTS)])
    said = " ".join(town.rerun(job, "join", "new", code=2).split())
    assert "join is the agent that joins forks, and runs no handler" in said
    assert "a stage that forks (split, gather)" in said
    assert "given the results (gather, total)" in said
    town.rig.sql("DELETE FROM join_arrivals WHERE branch = 1")
    said = " ".join(town.rerun(job, "gather", "same", code=1).split())
    assert f"Of join {job}:1, which had 3 results and errors, 2 are kept" in said
    # The ledger may have been pruned of what a child did, though the parent was over later.
    town.rig.sql(
        "UPDATE jobs SET updated_at = now() - interval '400 d' WHERE trace_id = %s", f"{job}/0"
    )
    assert "or a child of it, ended so long ago" in town.rerun(job, "split", "same", code=1)
    assert town.rerun(job, "report", "same", "--dry-run")["outcome"] == "would be sent"
    town.rig.sql(
        "UPDATE jobs SET status = 'waiting', handed_to = '{join}' WHERE trace_id = %s", job
    )
    assert "Its children are still at work" in town.rerun(job, "split", "new", code=1)
    assert not town.rig.sql("SELECT * FROM reruns")
