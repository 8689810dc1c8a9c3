"""Redrive on real services: whoever runs it, how often, wherever it dies: once.

A letter is of step 2: `work` failed a job that a hand-off (step 1) had brought. Redriven, `work`
does step 3 and `finish` step 4.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from schemas import headers as h
from schemas.state import Status
from streams.config import Settings
from streams.deadletter import redrive
from tests.support import forked
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.judge import (
    assert_no_step_twice,
    assert_projection_is_the_fold,
    doubles,
)
from tests.support.letters import (
    ALL,
    MENDED,
    STAGES,
    actions,
    assert_each_has_one_result,
    letters_of,
    ran,
    redriven_records,
)
from tests.support.rig import Rig, job_id
from tests.support.worker import environment

pytestmark = pytest.mark.services


def killed_redrive(rig: Rig, point: str) -> None:
    """The command in a process of its own, which ends at `point`."""
    settings = rig.settings.model_copy(update={"crash_point": point})
    done = forked.run("streams.cli", "dlq", "redrive", *ALL, env=environment(settings))
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_letters_redriven_twice_yield_one_result_and_one_effect_each(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        handoff = Command(settings, tmp_path)
        ids = letters_of(rig, 20, effect="once")
        ran(handoff("dlq", "redrive", *ALL, "--as", "anna", "--reason", "mended"))
        assert "No open letter fits" in ran(handoff("dlq", "redrive", *ALL)).stderr
        # By id they are taken as they stand; and once more by a program.
        ran(handoff("dlq", "redrive", *ids))
        report = asyncio.run(redrive(settings, [*ids[:5], "feed"], who="a program"))
        assert (report.redriven, [x.place.topic for x in report.refused]) == (5, ["feed"])
        assert len(redriven_records(rig)) == 45
        rig.worker(*STAGES, app=MENDED)
        assert_each_has_one_result(rig, ids)
        assert rig.sql("SELECT records FROM skips WHERE reason = 'duplicate'") == [{"records": 25}]
        # The effect was done by the run that failed, and is answered from the ledger since.
        assert sorted(n for _, n in rig.target.calls) == list(range(20))
        done = actions(rig)
        assert Counter(row["who"] for row in done)["anna"] == 20
        assert {row["why"] for row in done if row["who"] == "anna"} == {"mended"}
        assert len({row["batch"] for row in done}) == 3
        assert all(row["old_sha256"] == row["new_sha256"] for row in done)
        sent = {(r.partition, r.offset) for r in redriven_records(rig)}
        assert {(row["sent_partition"], row["sent_offset"]) for row in done} == sent


def test_a_redrive_of_1000_letters_killed_in_the_middle_and_run_again_gives_each_job_one_result(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        handoff = Command(settings, tmp_path)
        ids = letters_of(rig, 1_000)
        killed_redrive(rig, "redrive.planned:3")
        assert (len(redriven_records(rig)), len(actions(rig))) == (200, 200)
        killed_redrive(rig, "redrive.produced:3")
        assert (len(redriven_records(rig)), len(actions(rig))) == (500, 400)
        # One worker is at it while the command dies once more and is run again.
        rig.worker(*STAGES, app=MENDED)
        killed_redrive(rig, "redrive.recorded:3")
        assert (len(redriven_records(rig)), len(actions(rig))) == (800, 700)
        last = ran(handoff("dlq", "redrive", *ALL))
        assert "Redriven: 300 of 300" in last.stderr
        assert_each_has_one_result(rig, ids)
        assert len(redriven_records(rig)) == 1_100
        assert rig.sql("SELECT records FROM skips WHERE reason = 'duplicate'") == [{"records": 100}]
        done = actions(rig)
        assert doubles((r["topic_id"], r["partition"], r["offset"]) for r in done) == {}
        assert len(done) == 1_000


def test_a_worker_killed_over_redriven_records_does_each_step_once(
    settings: Settings, tmp_path: Path
) -> None:
    """The claim that the dead worker made is by the record's place, so the record passes again."""
    with Rig(settings, tmp_path, max_in_flight_records=64, max_commit_records=20) as rig:
        ids = letters_of(rig, 200, effect="repeatable")
        for _ in range(2):
            asyncio.run(redrive(settings, ids, who="anna"))
        for point in ("commit.selected:2", "commit.produced:3", "commit.committed:2"):
            killed = rig.worker(*STAGES, app=MENDED, crash_point=point)
            assert killed.ended() == -signal.SIGKILL, killed.log[-4000:]
            assert rig.finished() < len(ids), "work was in flight at the kill"
        rig.worker(*STAGES, app=MENDED)
        rig.wait_results(len(ids))
        assert_each_has_one_result(rig, ids)
        assert sorted(rig.target.effects.values()) == list(range(len(ids)))


def test_a_group_set_back_below_redriven_records_does_nothing_again(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        ids = letters_of(rig, 20)
        asyncio.run(redrive(settings, ids, who="anna"))
        worker = rig.worker(*STAGES, app=MENDED)
        rig.wait_results(len(ids))
        assert_each_has_one_result(rig, ids)
        assert worker.stop() == 0
        rig.set_committed("work", dict.fromkeys(range(rig.settings.partitions), (0, "")))
        # And one more redrive, that comes after all of it.
        asyncio.run(redrive(settings, ids, who="bob"))
        rig.worker(*STAGES, app=MENDED)
        assert_each_has_one_result(rig, ids)


def test_two_people_who_redrive_the_same_letters_at_once_get_one_result_and_are_both_recorded(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        ids = letters_of(rig, 30)
        rig.worker(*STAGES, app=MENDED)

        async def both() -> None:
            await asyncio.gather(*(redrive(settings, ids, who=who) for who in ("anna", "bob")))

        asyncio.run(both())
        assert len(redriven_records(rig)) == 60
        assert_each_has_one_result(rig, ids)
        assert Counter(row["who"] for row in actions(rig)) == {"anna": 30, "bob": 30}


def test_a_job_that_fails_again_has_a_new_letter_that_can_be_redriven_and_has_not_grown(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, partitions=1) as rig:
        handoff = Command(settings, tmp_path)
        letters_of(rig, 1)
        worker = rig.worker("work", "projector")
        for rounds in (2, 3, 4):
            ran(handoff("dlq", "redrive", job_id(0)))
            rig.wait(lambda n=rounds: len(rig.dead_letters("work")) == n, "a new letter")
        assert worker.stop() == 0
        letters = rig.dead_letters("work")
        assert [r.header(h.DLQ_SEQ) for r in letters] == [b"2", b"3", b"4", b"5"]
        names = [[name for name, _ in r.headers] for r in letters[1:]]
        assert names[0] == names[1] == names[2]
        assert {(r.key, r.value) for r in letters} == {(letters[0].key, letters[0].value)}
        # An old letter is settled by what came after it.
        ran(handoff("dlq", "redrive", f"{rig.topic('work')}.dlq/0/{letters[0].offset}"))
        ran(handoff("dlq", "redrive", job_id(0)))
        rig.worker(*STAGES, app=MENDED)
        rig.wait_drained("work", "finish")
        steps = [(s.seq, s.status.value) for s in rig.states()]
        assert steps == [(n, "failed") for n in (2, 3, 4, 5)] + [(6, "running"), (7, "done")]
        assert len(rig.records("done")) == 1
        assert_projection_is_the_fold(rig)


def test_a_canary_that_fails_again_stops_the_rest_and_one_that_lives_lets_it_go(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        handoff = Command(settings, tmp_path)
        letters_of(rig, 10)
        worker = rig.worker("work", "projector")
        stopped = ran(handoff("dlq", "redrive", *ALL, "--canary", "2", "-o", "json"), 1)
        report = json.loads(stopped.stdout)
        assert (report["redriven"], report["left"], len(report["failed_again"])) == (2, 8, 2)
        assert "the canary stopped it, 8 were not tried" in stopped.stderr
        assert len(redriven_records(rig)) == 2
        assert worker.stop() == 0
        # Nobody is there to answer.
        silent = handoff("dlq", "redrive", *ALL, "--canary", "1", "--canary-timeout", "1")
        assert "has no new step yet" in ran(silent, 1).stdout
        assert len(redriven_records(rig)) == 3
        rig.worker(*STAGES, app=MENDED)
        ran(handoff("dlq", "redrive", *ALL, "--canary", "3"))
        rig.wait_results(10)
        rig.wait_drained("work", "finish")
        assert Counter(r.job for r in rig.records("done")) == Counter(map(job_id, range(10)))
        assert_no_step_twice(rig)


def test_a_parked_job_goes_on_once_its_effect_is_resolved_and_its_letter_redriven(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        handoff = Command(settings, tmp_path)
        killed = rig.worker("work", "projector")
        rig.hand_off("work", [(job_id(0), 1, Job(n=7, effect="once", answer_gate="never"))])
        rig.wait(lambda: rig.target.calls, "the effect is under way")
        killed.kill()
        worker = rig.worker("work", "projector")
        rig.wait(lambda: rig.dead_letters("work"), "the job is parked")
        rig.wait_drained("work")
        assert_projection_is_the_fold(rig)
        assert [(s.seq, s.status) for s in rig.states()] == [(2, Status.WAITING)]
        # Still in doubt: the effect is not repeated, the job is parked again, at the next step.
        again = handoff("dlq", "redrive", job_id(0), "--canary", "1")
        assert "failed again: in_doubt" in ran(again, 1).stdout
        key = rig.sql("SELECT key FROM effects")[0]["key"]
        answer = ("--happened", "--result", '{"n": 7}', "--reason", "the target says so", "--yes")
        resolved = ran(handoff("effects", "resolve", key, *answer))
        assert worker.stop() == 0
        rig.worker(*STAGES)
        # The command that `resolve` names is the one that brings the job on.
        program, *command = resolved.stdout.splitlines()[-1].split()
        assert program == "handoff"
        ran(handoff(*command, "--canary", "1"))
        rig.wait_results(1)
        rig.wait_drained("work", "finish")
        assert [(s.seq, s.status.value) for s in rig.states()] == [
            (2, "waiting"),
            (3, "waiting"),
            (4, "running"),
            (5, "done"),
        ]
        assert len(rig.target.calls) == 1
        assert_no_step_twice(rig)


def test_a_redrive_keeps_its_rate(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        letters_of(rig, 6)
        ran(Command(settings, tmp_path)("dlq", "redrive", *ALL, "--rate", "4/s"))
        times = sorted(r.timestamp_ms for r in redriven_records(rig))
        # Four at once, the others when a second has passed: never more than the rate allows.
        assert times[4] - times[0] >= 900
        assert len(times) == 6
