"""Goal: a job that is over is done again as a new job, its effects once more or not, as was chosen.

Method: real workers on `take` → `work` (does the effect) → `finish`; judged by the target's own
record of calls, the topics, and the audit after each run.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas import headers as h
from schemas.ids import traceparent
from schemas.state import Status
from streams.audit import audited
from streams.config import Settings
from tests.support import forked
from tests.support.audits import found, pairs, project, truncate
from tests.support.commands import Command, Completed
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice, steps_by_job
from tests.support.letters import MENDED, ran
from tests.support.rig import Rig
from tests.support.worker import environment

pytestmark = pytest.mark.services

APP = "tests.support.flows:flow"


class Town:
    """A rig, the command, and a run in it whose worker has stopped."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self._command = Command(rig.settings, folder)

    def finished(self, *jobs: Job) -> list[str]:
        """Run `jobs` to their ends."""
        before = self.ended()
        worker = self.rig.worker()
        ids = self.rig.submit(jobs)
        self.rig.wait(lambda: self.ended() == before + len(jobs), "all jobs are over")
        self.settle(worker)
        return ids

    def ended(self) -> int:
        return len({s.trace_id for s in self.rig.states() if s.status.terminal})

    def settle(self, worker: Any, findings: Collection[tuple[str, str]] = ()) -> None:
        """Drained, projected, the worker stopped, and the audit says nothing but `findings`."""
        self.rig.wait_drained()
        project(self.rig)
        assert worker.stop() == 0
        assert_no_step_twice(self.rig)
        assert found(self.rig) == set(findings)

    def run_to(self, count: int, app: str = APP) -> None:
        """A worker until `count` jobs are over."""
        worker = self.rig.worker(app=app)
        self.rig.wait(lambda: self.ended() == count, f"{count} jobs are over")
        self.settle(worker)

    def handoff(self, *args: str) -> Completed:
        return self._command(*args)

    def rerun(self, job: str, stage: str, effects: str, *more: str, code: int = 0) -> Any:
        args = ("jobs", "rerun", job, "--from", stage, "--effects", effects, "--app", APP)
        done = ran(self.handoff(*args, "-o", "json", *more), code)
        return json.loads(done.stdout) if code == 0 else done.stderr

    @property
    def calls(self) -> list[str]:
        return [key for key, _ in self.rig.target.calls]

    def told(self, job: str) -> list[tuple[int, str, Status]]:
        return [(s.seq, s.stage, s.status) for s in steps_by_job(self.rig.states())[job]]


@pytest.fixture
def town(settings: Settings, tmp_path: Path) -> Iterator[Town]:
    with Rig(settings, tmp_path) as rig:
        yield Town(rig, tmp_path)


FROM_WORK = [(1, "work", Status.RUNNING), (2, "finish", Status.DONE)]
FROM_TAKE = [(1, "take", Status.RUNNING), (2, "work", Status.RUNNING), (3, "finish", Status.DONE)]


def test_with_the_same_effects_the_target_is_not_called_and_with_new_ones_once(town: Town) -> None:
    (job,) = town.finished(Job(n=7, effect="once"))
    assert town.calls == [f"{job}:work:0:mark"]
    at_work = town.rerun(job, "work", "same")
    at_take = town.rerun(job, "take", "same")
    town.run_to(3)
    assert town.calls == [f"{job}:work:0:mark"]
    assert town.told(at_work["job"]) == FROM_WORK
    # What says whose keys they are came through a hand-off.
    assert town.told(at_take["job"]) == FROM_TAKE
    # A replay finds its answers where the rerun did.
    replayed = ran(town.handoff("replay", "--trace", at_take["job"], "--app", APP, "-o", "json"))
    assert json.loads(replayed.stdout)["counts"]["same"] == 3
    anew = town.rerun(job, "work", "new", "--label", "anew")
    town.run_to(4)
    assert town.calls[1:] == [f"{anew['job']}:work:0:mark"]
    assert town.told(job) == FROM_TAKE, "the original is as it was"
    results = {r.job: r.value for r in town.rig.records("done")}
    assert set(results) == {job, at_work["job"], at_take["job"], anew["job"]}
    assert len(set(results.values())) == 1, "the same input gave the same result"


def test_an_effect_that_the_original_has_no_record_of_is_done_under_its_key(town: Town) -> None:
    (job,) = town.finished(Job(n=7, effect="once"))
    town.rig.sql("DELETE FROM effects")
    town.rerun(job, "work", "same")
    town.rerun(job, "work", "same", "--label", "2")
    town.run_to(3)
    assert town.calls == [f"{job}:work:0:mark"] * 2
    assert [e["trace_id"] for e in town.rig.sql("SELECT * FROM effects")] == [job]


def test_the_same_command_twice_is_one_job(town: Town) -> None:
    (job,) = town.finished(Job(n=7, effect="once"))
    dry = town.rerun(job, "work", "new", "--dry-run")
    assert dry["outcome"] == "would be sent"
    assert town.rig.sql("SELECT * FROM reruns") == []
    before = len(town.rig.records("work"))
    first = town.rerun(job[:31], "work", "new", "--as", "anna", "--reason", "lost")
    again = town.rerun(job, "work", "new")
    assert (first["outcome"], again["outcome"]) == ("sent", "sent again")
    assert len({x["job"] for x in (dry, first, again)}) == 1
    assert len(town.rig.records("work")) == before + 2
    town.run_to(2)
    third = town.rerun(job, "work", "new")
    assert (third["outcome"], third["job"]) == ("already there", first["job"])
    assert len(town.rig.records("work")) == before + 2
    assert "with --effects new: it is job" in town.rerun(job, "work", "same", code=1)
    assert len(town.calls) == 2
    (row,) = town.rig.sql("SELECT * FROM reruns")
    assert (row["trace_id"], row["rerun_of"], row["keys_of"]) == (first["job"], job, first["job"])
    assert (row["who"], row["why"]) == ("anna", "lost")
    # The trace is the new job's own; it links to the step that is repeated.
    (state,) = [s for s in town.rig.states() if (s.trace_id, s.seq) == (first["job"], 1)]
    assert state.link == traceparent(job, 2)
    sent = [r for r in town.rig.records("work") if r.header(h.RERUN)]
    assert {r.header(h.RERUN) for r in sent} == {job.encode()}


def test_workers_killed_in_the_middle_of_reruns_double_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=16, max_commit_records=8) as rig:
        town = Town(rig, tmp_path)
        jobs = [Job(n=n, effect="repeatable") for n in range(40)]
        ids = town.finished(*jobs)
        assert len(town.calls) == len(ids)
        new = [town.rerun(job, "take", "same")["job"] for job in ids]
        for point in ("stage.handled:9", "commit.produced:3", "commit.committed:2"):
            killed = rig.worker(crash_point=point)
            assert killed.ended() == -signal.SIGKILL, killed.log[-4000:]
            assert rig.finished() < 2 * len(ids), "work was in flight at the kill"
        town.run_to(2 * len(ids))
        assert len(town.calls) == len(ids)
        assert [town.told(job) for job in new] == [FROM_TAKE] * len(new)
        assert len(rig.records("done")) == 2 * len(ids)


def test_a_rerun_that_fails_and_is_redriven_keeps_to_the_keys_of_the_original(town: Town) -> None:
    (job,) = town.finished(Job(n=7, effect="once", fault="reject"))
    again = town.rerun(job, "take", "same")["job"]
    town.run_to(2)
    letter = town.rig.dead_letters("work")[-1]
    assert (letter.job, letter.header(h.KEYS_OF)) == (again, job.encode())
    # And the rerun of a rerun does, too: the keys are those of the first.
    third = town.rerun(again, "work", "same")
    assert third["keys_of"] == job
    ran(town.handoff("dlq", "redrive", again))
    worker = town.rig.worker(app=MENDED)
    town.rig.wait_results(2)
    town.settle(worker)
    assert town.told(again)[2:] == [(3, "work", Status.RUNNING), (4, "finish", Status.DONE)]
    assert town.told(third["job"]) == FROM_WORK
    assert town.calls == [f"{job}:work:0:mark"]


def test_a_rerun_killed_in_an_effect_that_must_not_be_repeated_is_parked_and_resolved(
    town: Town,
) -> None:
    (job,) = town.finished(Job(n=7, effect="once"))
    key = f"{job}:work:0:mark"
    town.rig.sql("DELETE FROM effects")
    again = town.rerun(job, "work", "same")["job"]
    killed = town.rig.worker(crash_point="ledger.called")
    assert killed.ended() == -signal.SIGKILL, killed.log[-4000:]
    worker = town.rig.worker()
    town.rig.wait(lambda: town.rig.dead_letters("work"), "the rerun is parked")
    town.settle(worker, {("effect_in_doubt", job)})
    assert town.calls == [key] * 2, "by the original, and by the attempt that died"
    assert key in town.handoff("why", again).stdout
    shown = json.loads(ran(town.handoff("jobs", "show", again, "-o", "json")).stdout)
    assert [(e["key"], e["status"]) for e in shown["effects"]] == [(key, "in_doubt")]
    answer = ("--happened", "--result", '{"n": 7}', "--reason", "seen", "--yes")
    resolved = ran(town.handoff("effects", "resolve", key, *answer))
    assert resolved.stdout == f"handoff dlq redrive {again}\n"
    ran(town.handoff("dlq", "redrive", again))
    town.run_to(2)
    assert town.told(again)[-1] == (3, "finish", Status.DONE)
    assert town.calls == [key] * 2


def test_a_command_killed_before_it_sends_is_run_again(town: Town) -> None:
    (job,) = town.finished(Job(n=7, effect="once"))
    settings = town.rig.settings.model_copy(update={"crash_point": "rerun.recorded"})
    args = ("jobs", "rerun", job, "--from", "work", "--effects", "same", "--app", APP)
    killed = forked.run("streams.cli", *args, env=environment(settings))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [r for r in town.rig.records("work") if r.header(h.RERUN)] == []
    assert town.rerun(job, "work", "same")["outcome"] == "sent again"
    town.run_to(2)
    assert len(town.calls) == 1


def test_what_cannot_be_rerun_is_refused_with_a_sentence_and_nothing_is_sent(town: Town) -> None:
    (job,) = town.finished(Job(n=7))
    assert "No job has an id" in town.rerun("beef", "work", "new", code=1)
    assert "has no stage read; it has take, work, finish" in town.rerun(job, "read", "new", code=2)
    rig = town.rig
    worker = rig.worker()
    (held, short) = rig.submit(
        [Job(n=8, gate="never"), Job(n=9, fault="reject")],
    )
    rig.wait(lambda: town.ended() == 2, "the short one is over")
    project(rig)
    assert "never at stage finish; it came through take, work" in town.rerun(
        short, "finish", "new", code=1
    )
    said = town.rerun(held, "take", "new", code=1)
    assert f"Job {held} is running at take, and only a job that is over" in said
    assert f"handoff trace {held} --watch" in said
    rig.target.open("never")
    rig.wait(lambda: town.ended() == 3, "all are over")
    town.settle(worker)
    # Today's model takes it no more.
    strict = ("--app", "tests.support.strict:flow")
    assert "is no StrictJob of today (1 faults; token: Field required)" in town.rerun(
        job, "work", "new", *strict, code=1
    )
    # The ledger may have been pruned.
    rig.sql("UPDATE jobs SET updated_at = updated_at - interval '365 d' WHERE trace_id = %s", job)
    assert "the ledger may have been pruned" in town.rerun(job, "work", "same", code=1)
    assert rig.sql("SELECT * FROM reruns") == []
    assert [
        r for s in ("take", "work", "finish") for r in rig.records(s) if r.header(h.RERUN)
    ] == []


def test_an_input_that_has_expired_is_taken_from_the_step_before_or_is_gone(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, partitions=1) as rig:
        town = Town(rig, tmp_path)
        (job,) = town.finished(Job(n=7))
        value = rig.records("work")[0].value
        for stage in ("take", "work"):
            truncate(rig, rig.topic(stage), 0, rig.records(stage)[-1].offset + 1)
        said = town.rerun(job, "take", "new", code=1)
        assert "is not to be had any more: its record has expired" in said
        again = town.rerun(job, "work", "new")
        assert again["input"] == "step 1 in job_history"
        assert rig.records("work")[-1].value == value
        worker = rig.worker()
        rig.wait(lambda: town.ended() == 2, "the rerun is over")
        # That the topics were cut short is a finding of its own; there is no other.
        town.settle(worker, {("topic_truncated", "")})
        assert town.told(again["job"]) == FROM_WORK


def test_the_audit_finds_a_rerun_that_was_passed_over(town: Town) -> None:
    (job,) = town.finished(Job(n=7, effect="once"))
    again = town.rerun(job, "work", "same")["job"]
    # It waits to be consumed. An attempt of it that died will be taken over, under the old key.
    town.rig.sql(
        "UPDATE effects SET status = 'claimed', idempotent = true, leased_until = now(),"
        " result = NULL, settled_at = NULL"
    )
    with audited(town.rig.settings) as verdict:
        assert pairs(verdict) == set()
    ends = {r.partition: (r.offset + 1, "") for r in town.rig.records("work")}
    town.rig.set_committed("work", ends)
    with audited(town.rig.settings) as verdict:
        assert pairs(verdict) == {("record_lost", again)}
    town.rig.sql("DELETE FROM reruns")
    with audited(town.rig.settings) as verdict:
        assert pairs(verdict) == {("record_lost", again), ("effect_unsettled", job)}
