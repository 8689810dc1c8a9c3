"""Goal: a cancelled job ends once, as cancelled, whatever it was at; a paused stage starts nothing.

Method: one run with jobs in every kind of state, ordered by the commands that people use; judged by
job-state, the projection, the target's record and the audit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.audit import Options, audited
from streams.config import Settings
from tests.support.audits import project
from tests.support.cancelling import APP, Errand, flow
from tests.support.commands import Command
from tests.support.judge import assert_no_step_twice, steps_by_job
from tests.support.rig import Rig

pytestmark = pytest.mark.services

#: By number; the last two are forked.
RESTS = ("gate", "heed", "place", "timer", "doubt", "pass", "done")
FORKS = (("gate", "timer", "pass"), ("done", "done"))


def errands() -> list[Errand]:
    plain = [Errand(n=n, rest=rest, effect=True) for n, rest in enumerate(RESTS)]  # type: ignore[arg-type]
    return plain + [
        Errand(n=len(plain) + n, parts=parts, effect=True)  # type: ignore[arg-type]
        for n, parts in enumerate(FORKS)
    ]


def at_rest(rig: Rig) -> bool:
    """Whether each job is where it stays; `last` is paused, `work` holds two and a branch."""
    waiting = rig.sql("SELECT count(*) AS n FROM jobs WHERE status = 'waiting'")[0]["n"]
    handed = rig.sql("SELECT count(*) AS n FROM jobs WHERE handed_to = '{last}'")[0]["n"]
    # The timer, the parked one, the first fork and its branch; two before the paused stage.
    return (waiting, handed, rig.target.waiting("work")) == (4, 2, 2)


def test_jobs_in_every_state_are_cancelled_once(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, flow, cancel_grace_s=0.3) as rig:
        command = Command(rig.settings, tmp_path)
        done = command("stage", "pause", "last", "--by", "eve", "--reason", "the target is full")
        assert done.returncode == 0, done.stderr
        worker = rig.worker(app=APP)
        ids = rig.submit(errands())
        rig.wait(lambda: at_rest(rig), "all are at rest")
        queued, over, joined = ids[5], ids[6], ids[8]

        why = command("why", queued)
        assert "paused by eve since" in why.stdout
        assert "the target is full" in why.stdout
        assert "handoff stage resume errands.last" in why.stdout
        lag = json.loads(command("lag", "--stage", "last", "-o", "json").stdout)
        behind = next(x for x in lag if x["records"])
        assert (behind["state"], behind["reason"]) == ("stuck", "paused")
        assert "by eve" in behind["why"]

        refused = command("jobs", "cancel", "--filter", "flow=errands", stdin="n\n")
        assert refused.returncode == 2
        again = command(
            "jobs", "cancel", *ids, "--by", "eve", "--reason", "wrong list", "--wait", "-o", "json"
        )
        found = {x["job"]: x for x in json.loads(again.stdout)}
        assert again.returncode == 1, "two were over before"
        assert [found[x]["did"] for x in ids] == [
            *("asked", "asked", "asked", "woken", "woken", "asked", "over"),
            *("woken", "over"),
        ]
        assert {x: found[x]["now"] for x in ids} == {
            x: "done" if x in (over, joined) else "cancelled" for x in ids
        }
        # Nothing is left for the stage to do: it was paused all the while.
        rig.wait_drained()
        shown = command("jobs", "show", queued)
        assert "Cancelled by eve at" in shown.stdout
        assert "wrong list" in command("why", queued).stdout
        assert command("jobs", "cancel", queued).returncode == 0, "twice is once"
        rerun_and_replay(command, ids)

        later = rig.submit([Errand(n=50)], [f"{99:032x}"])
        assert command("stage", "resume", "last").returncode == 0
        rig.wait(lambda: rig.records("done")[-1:] and rig.records("done")[-1].job == later[0], "on")
        project(rig)
        assert worker.stop() == 0
        judge(rig, ids)


def rerun_and_replay(command: Command, ids: list[str]) -> None:
    """The timer's job ended with a record that only woke it: a rerun takes what came before."""
    options = ("--from", "work", "--effects", "same", "--dry-run", "--app", APP)
    again = command("jobs", "rerun", ids[3], *options, "-o", "json")
    assert again.returncode == 0, again.stderr
    replayed = command("replay", "--trace", ids[7], "--app", APP)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "cancelled" in command("trace", ids[3]).stdout


def judge(rig: Rig, ids: list[str]) -> None:
    assert_no_step_twice(rig)
    steps = steps_by_job(rig.states())
    for job, states in steps.items():
        assert [s.seq for s in states] == list(range(1, len(states) + 1)), job
        assert states[-1].status.terminal, job
        assert not any(s.status.terminal for s in states[:-1]), job
    forked = ids[7]
    branches = [steps[f"{forked}/{n}"][-1].status.value for n in range(3)]
    assert branches == ["cancelled"] * 3
    assert f"with its ancestor {forked}" in (steps[f"{forked}/0"][-1].error or "").message  # type: ignore[union-attr]
    heeded = steps[ids[1]]
    assert [s.stage for s in heeded] == ["take", "work", "last"], "what it ended with is kept"
    assert [len(rig.dead_letters(s)) for s in ("take", "work", "last")] == [0, 1, 0]
    # Each effect once, though handlers were cut off.
    assert len(rig.target.effects) == len(rig.target.calls)
    with audited(rig.settings, Options()) as verdict:
        found = {(f.rule, f.job) for f in verdict.findings()}
    # It was in doubt before it was cancelled, and is.
    assert found == {("effect_in_doubt", ids[4])}
