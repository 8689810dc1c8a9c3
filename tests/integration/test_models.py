"""Goal: mails that a model is asked about have one accepted answer each, whatever server and worker
do meanwhile, and what that cost is told.

Method: the mail flow that ships, on real workers, with a scripted model server whose own record is
what counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import flow
from infra.demo.desk import Desk
from schemas.mail import Mail
from schemas.state import JobState, Status
from schemas.usage import Usage, read_usage
from streams.config import Settings
from tests.support import model_server as says
from tests.support.audits import found, project
from tests.support.commands import Command
from tests.support.judge import assert_no_step_twice, assert_projection_is_the_fold
from tests.support.loop_thread import LoopThread
from tests.support.model_server import GOOD, KEY, ModelServer, Say
from tests.support.rig import Rig, job_id
from tests.support.worker import killed
from tests.unit.agents.mails import sample

pytestmark = pytest.mark.services

APP = "agents:flow"
#: Submitted while the server is away; the worker is killed over them.
FIRST = 30
#: What the others of a job's calls are answered with before it is answered well: by turns.
TURNS: tuple[tuple[Say, ...], ...] = (
    (),
    (says.SLOW,),
    (says.BUSY,),
    (says.MALFORMED,),
    (says.BROKEN,),
    (says.UNFIT, says.CUT_OFF),
)
SECOND = 3 * len(TURNS)
#: Never answered well.
HOPELESS = job_id(FIRST + SECOND)
#: These were paid for, and spend an attempt.
BAD = (says.MALFORMED, says.UNFIT, says.CUT_OFF)


@pytest.fixture
def desk_url() -> Iterator[str]:
    thread, desk = LoopThread("desk"), Desk()
    thread.start()
    yield thread.run(desk.start())
    thread.run(desk.stop())
    thread.end()


def turns(job: str) -> tuple[Say, ...]:
    n = int(job, 16) - 1
    return () if n < FIRST else TURNS[n % len(TURNS)]


def script(job: str, nth: int) -> Say:
    if job == HOPELESS:
        return says.UNFIT
    before = turns(job)
    return before[nth] if nth < len(before) else GOOD


def test_each_mail_has_one_accepted_answer_and_its_cost_is_told(
    settings: Settings, tmp_path: Path, desk_url: str
) -> None:
    with ModelServer(script) as server, Rig(settings, tmp_path, flow) as rig:
        rig.variables = {
            "HANDOFF_DESK_URL": desk_url,
            **server.settings(HANDOFF_MODEL_TIMEOUT_S="4"),
        }
        first = _submit(rig, range(FIRST))
        cached = _kill_over_settled_answers(rig, server)
        worker = rig.worker(app=APP)
        rig.wait(lambda: _ended(rig) >= set(first), "all mails of the first worker are done")
        _check_that_kept_answers_were_not_asked_for(rig, server, cached)

        second = _submit(rig, range(FIRST, FIRST + SECOND + 1))
        rig.wait(lambda: _ended(rig) == {*first, *second}, "all mails have ended")
        rig.wait_drained()
        project(rig)
        # While the worker lives: it answers a rerun from the ledger, too.
        handoff = Command(settings, tmp_path)
        again = _rerun(rig, handoff, second[0], server)
        assert_no_step_twice(rig)
        assert_projection_is_the_fold(rig)
        assert worker.stop() == 0
        for job in second[:-1]:
            assert server.said(GOOD).count(job) == 1
            _check_cost(_classified(rig)[job], turns(job))
        _check_the_dead_letter(rig)
        _check_shown(handoff, first, second, again)
        assert found(rig) == set()
        _check_replay(handoff, server, second[3])
        told = "".join(w.log for w in rig.workers) + str(rig.log(settings.names.job_state_topic))
        assert KEY not in told + str(rig.dead_letters("classify"))


def _submit(rig: Rig, numbers: range) -> list[str]:
    rows = sample()
    mails: Any = [Mail(**rows[n]) for n in numbers]
    return rig.submit(mails, [job_id(n) for n in numbers])


def _kill_over_settled_answers(rig: Rig, server: ModelServer) -> set[str]:
    """A worker waits while the server is away, and dies once some answers are settled; the jobs
    whose answers are kept and whose step is not committed."""
    server.down()
    doomed = rig.worker("classify", app=APP, crash_point="ledger.settled:8")
    rig.wait(lambda: "cannot be reached" in doomed.log, "the stage says what it waits for")
    assert server.asked == []
    server.up()
    killed(doomed)
    rows = rig.sql("SELECT trace_id FROM effects WHERE status = 'done'")
    cached = {row["trace_id"] for row in rows} - set(_classified(rig))
    assert cached, "killed between settlement and commit"
    return cached


def _check_that_kept_answers_were_not_asked_for(
    rig: Rig, server: ModelServer, cached: set[str]
) -> None:
    good = server.said(GOOD)
    for job, state in _classified(rig).items():
        usage = _usage(state)
        if job in cached:
            assert good.count(job) == 1, "a kept answer is not asked for again"
            assert (usage.calls, usage.cached, usage.input_tokens) == (0, 1, 0)
        else:
            assert (usage.calls, usage.cached, usage.input_tokens) == (1, 0, says.TOKENS_IN)
    rows = rig.sql("SELECT count(*) AS n FROM effects WHERE name = 'label' AND status = 'done'")
    assert rows == [{"n": FIRST}], "each mail has one accepted answer"


def _check_cost(state: JobState, before: tuple[Say, ...]) -> None:
    """Bad answers are paid for and spend attempts; away, busy and slow servers do neither."""
    bad = sum(say in BAD for say in before)
    usage = _usage(state)
    assert state.attempts == 1 + bad
    assert (usage.calls, usage.cached) == (1 + bad, 0)
    assert usage.input_tokens == (1 + bad) * says.TOKENS_IN
    assert usage.output_tokens == (1 + bad) * says.TOKENS_OUT


def _check_the_dead_letter(rig: Rig) -> None:
    (letter,) = rig.dead_letters("classify")
    state = _classified(rig)[HOPELESS]
    assert (letter.job, state.status, state.attempts) == (HOPELESS, Status.FAILED, 5)
    assert state.error is not None
    assert "is no Verdict: label: Input should be 'spam' or 'ham'" in state.error.message
    assert _usage(state).calls == 5


def _rerun(rig: Rig, handoff: Command, job: str, server: ModelServer) -> str:
    args = ("jobs", "rerun", job, "--from", "classify", "--effects", "same", "--app", APP)
    done = handoff(*args, "-o", "json")
    assert done.returncode == 0, done.stderr
    again = str(json.loads(done.stdout)["job"])
    asked = len(server.asked)
    rig.wait(lambda: again in _ended(rig), "the rerun is done")
    rig.wait_drained()
    project(rig)
    assert len(server.asked) == asked
    assert (_usage(_classified(rig)[again]).calls, _usage(_classified(rig)[again]).cached) == (0, 1)
    return again


def _check_replay(handoff: Command, server: ModelServer, job: str) -> None:
    """It needs no server: answers are the ledger's."""
    asked = len(server.asked)
    server.down()
    app = "tests.support.asking_mail:flow"
    done = handoff("replay", "--trace", job, "--app", app, "-o", "json", **server.settings())
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["all_same"]
    assert len(server.asked) == asked


def _check_shown(handoff: Command, first: list[str], second: list[str], again: str) -> None:
    job = second[3]
    assert turns(job) == (says.MALFORMED,)
    shown = handoff("jobs", "show", job).stdout
    assert f"{says.MODEL}: 240 in, 18 out, 2 calls" in shown
    step = next(line for line in shown.splitlines() if "mail.classify[" in line)
    assert [
        cell for cell in step.replace("│", " ").split() if cell in (says.MODEL, "240", "18")
    ] == [says.MODEL, "240", "18"]
    document = json.loads(handoff("jobs", "show", job, "-o", "json").stdout)
    assert (document["tokens"]["inputTokens"], document["tokens"]["outputTokens"]) == (240, 18)
    assert "0 in, 0 out, 0 calls (1 cached)" in handoff("jobs", "show", again).stdout


def _ended(rig: Rig) -> set[str]:
    return {s.trace_id for s in rig.states() if s.status.terminal}


def _classified(rig: Rig) -> dict[str, JobState]:
    return {s.trace_id: s for s in rig.states() if s.stage == "classify"}


def _usage(state: JobState) -> Usage:
    usage = read_usage(state.usage)
    assert usage is not None
    return usage
