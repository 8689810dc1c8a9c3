"""Goal: dead letters of children, of the join agent and of joins are listed, edited where that
makes sense, and bring their jobs back once.

Method: real workers on `split` → `part`s → `gather` → more `part`s → `total` → `report`; judged by
the states and the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.state import Status
from streams.config import Settings
from tests.support.audits import project
from tests.support.commands import Command, Completed
from tests.support.judge import doubles, steps_by_job
from tests.support.letters import ran
from tests.support.rig import Rig
from tests.support.two_forks import MENDED, Bill, Order, flow
from tests.support.worker import Worker

pytestmark = pytest.mark.services

APP = "tests.support.two_forks:flow"


class Town:
    """A rig, the command, and a worker that runs."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.worker = rig, rig.worker(app=APP)
        self._command = Command(rig.settings, folder)

    def handoff(self, *args: str) -> Completed:
        return self._command(*args)

    def torn(self) -> str:
        """A job whose child 1 failed, and so its join."""
        order = Order(n=1, parts=3, bad=(1,), on_missing="fail")
        (job,) = self.rig.submit([order])
        self.rig.wait(lambda: self.rig.dead_letters("join"), "the join has failed")
        self.settle()
        return job

    def settle(self) -> None:
        self.rig.wait_drained(*flow.inputs)
        project(self.rig)

    def mend(self) -> Worker:
        """Another release takes the worker's place."""
        self.settle()
        assert self.worker.stop() == 0
        self.rig.variables[MENDED] = "1"
        self.worker = self.rig.worker(app=APP)
        return self.worker

    def labels(self, job: str) -> list[str]:
        """Of the job's bill, once it and nothing else is there."""
        self.rig.wait_results(1)
        self.settle()
        assert doubles((s.trace_id, s.seq) for s in self.rig.states()) == {}
        (record,) = self.rig.records("done")
        assert record.job == job
        bill = Bill.model_validate_json(record.value or b"")
        return [f"{item.n} {item.label}" for item in bill.items]

    def told(self, job: str) -> list[tuple[int, str, Status]]:
        return [(s.seq, s.stage, s.status) for s in steps_by_job(self.rig.states())[job]]


@pytest.fixture
def town(settings: Settings, tmp_path: Path) -> Iterator[Town]:
    with Rig(settings, tmp_path, flow) as rig:
        yield Town(rig, tmp_path)


ALL = [f"{n} second" for n in range(4)]
FAILED = [(1, "split", Status.WAITING), (2, "join", Status.FAILED)]
ON = [
    (5, "gather", Status.WAITING),
    (6, "join", Status.RUNNING),
    (7, "total", Status.RUNNING),
    (8, "report", Status.DONE),
]


def test_a_child_is_edited_then_its_join_is_redriven(town: Town) -> None:
    job = town.torn()
    clusters = json.loads(ran(town.handoff("dlq", "ls", "-o", "json")).stdout)
    assert {(c["where"], c["letters"]) for c in clusters} == {
        ("twice.part", 1),
        ("twice.join", 1),
    }
    said = ran(town.handoff("dlq", "show", job)).stdout
    assert "/1 failed" in " ".join(said.split())
    edit = ("--app", APP, "--yes", "--set", "bad=false")
    refused = ran(town.handoff("dlq", "edit", job, *edit), 1)
    assert "Edit the dead letters of the branches" in " ".join(refused.stderr.split())
    wrong = ("dlq", "edit", f"{job}/1", "--app", APP, "--yes", "--set", "bad=maybe")
    assert "no Item: bad" in ran(town.handoff(*wrong), 1).stderr
    ran(town.handoff("dlq", "edit", f"{job}/1", *edit))
    town.settle()
    assert town.told(job) == FAILED, "the join has failed, whatever comes later"
    ran(town.handoff("dlq", "redrive", job, "--yes"))
    assert town.labels(job) == ALL
    # The redriven letter closed the join at once.
    assert town.told(job) == [*FAILED, (3, "join", Status.RUNNING), *_one_less(ON)]
    left = json.loads(ran(town.handoff("dlq", "ls", "-o", "json")).stdout)
    assert left == []


def _one_less(steps: list[tuple[int, str, Status]]) -> list[tuple[int, str, Status]]:
    return [(seq - 1, stage, status) for seq, stage, status in steps]


def test_a_join_that_is_redriven_first_waits_for_its_child(town: Town) -> None:
    job = town.torn()
    ran(town.handoff("dlq", "redrive", job, "--yes"))
    town.rig.wait(lambda: len(town.told(job)) == 3, "the join is open again")
    assert town.told(job)[2] == (3, "join", Status.WAITING)
    town.mend()
    ran(town.handoff("dlq", "redrive", "--filter", "stage=part", "--yes"))
    assert town.labels(job) == ALL
    assert town.told(job) == [
        *FAILED,
        (3, "join", Status.WAITING),
        (4, "join", Status.RUNNING),
        *ON,
    ]
    # A replay goes through all of it, the child's redriven record as well.
    replayed = town.handoff("replay", "--trace", job, "--app", APP, "-o", "json")
    found = json.loads(replayed.stdout)
    assert found["counts"]["skipped"] == 4
    # What failed is mended in the worker, not here.
    differing = [(d["job"], d["stage"]) for d in found["differing"]]
    assert differing == [(f"{job}/1", "part")]


def test_the_letter_of_a_stage_that_joins_is_redriven_and_never_edited(town: Town) -> None:
    (job,) = town.rig.submit([Order(n=1, parts=1)])
    town.rig.wait(lambda: town.rig.dead_letters("total"), "the second join's stage has failed")
    edit = ("dlq", "edit", job, "--app", APP, "--yes", "--set", "expected=1")
    refused = " ".join(ran(town.handoff(*edit), 1).stderr.split())
    assert "refers to a join, whose results lie in Postgres" in refused
    town.mend()
    ran(town.handoff("dlq", "redrive", job, "--yes"))
    assert town.labels(job) == ["0 second", "1 second"]


def test_what_the_join_agent_cannot_read_brings_nothing_back(town: Town) -> None:
    town.rig.put("join", b"no job", b"{}")
    town.rig.flush()
    town.rig.wait(lambda: town.rig.dead_letters("join"), "it is dead-lettered")
    town.settle()
    refused = town.handoff("dlq", "redrive", "--filter", "stage=join", "--yes")
    assert "could not read" in " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode == 1
    assert len(town.rig.records("join")) == 1
    ran(town.handoff("dlq", "discard", "--filter", "stage=join", "--yes", "--reason", "forged"))
