"""A job that waits in a run: what is said of its calls, signals and times, and what to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from schemas.state import JobError, Status
from streams.state.forks import Branch
from streams.state.runs import Run, RunCommand, RunEvent, RunMove, moves_of, waits_in_run
from streams.why import Answer, Code, explain
from streams.why.facts import RunFacts
from tests.unit.why.test_why_answer import JOB, NOW, ago, facts, queued, state, worker

WAITS = state(Status.WAITING, stage="join", seq=3)
RUN = Run(
    parent=JOB,
    seq=1,
    flow="mail",
    stage="refund",
    signal=None,
    status="open",
    step=3,
    commands=3,
    calls=2,
    waits=("call book (/1)", "signal approval"),
    began_at=ago(60),
    ended_at=None,
)
BOOKS = Branch(f"{JOB}/1", 1, stage="book", status=Status.RUNNING, updated_at=ago(5))


def answer(run: RunFacts, **changes: Any) -> Answer:
    return explain(facts(**{"state": WAITS, "run": run, **changes}), NOW)


def test_calls_and_signals_are_named_and_the_command_that_sends_one() -> None:
    told = answer(RunFacts(RUN, (BOOKS,), 3, queued()))
    assert (told.code, told.stage) == (Code.RUN, "join")
    assert "It waits in its run of refund, which began at" in told.why
    assert "For its calls: /1 book · under way since 2026-03-01 11:59:55Z; and 2 more." in told.why
    assert "For: signal approval." in told.why
    assert told.do == (
        f"handoff signal {JOB} approval JSON",
        f"handoff why {JOB}/1",
        f"handoff run {JOB}",
    )


def test_a_call_that_is_itself_in_a_run_waits_for_nobody() -> None:
    nested = replace(BOOKS, stage="join", status=Status.WAITING)
    assert not nested.needs_redrive
    assert "/1 join · waiting in a run of its own" in answer(RunFacts(RUN, (nested,), 1)).why
    parked = replace(nested, error=JobError(kind="code_changed", message="?"))
    assert parked.needs_redrive
    assert not waits_in_run(Status.WAITING, "join", None, parked.error)


def test_a_time_that_nobody_keeps_is_said() -> None:
    soon = f"{NOW + timedelta(seconds=60):%Y-%m-%dT%H:%M:%SZ}"
    sleeps = replace(RUN, waits=(f"sleep until {soon}",))
    told = answer(RunFacts(sleeps, agent=queued(), timers=(worker(),)))
    assert told.do == (f"handoff run {JOB}",)
    assert f"For: sleep until {soon}." in told.why
    told = answer(RunFacts(sleeps, agent=queued()))
    assert "No process has ever run the timers." in told.why
    assert told.do[0] == "handoff worker timers"
    over = replace(RUN, waits=(f"signal a until {ago(60):%Y-%m-%dT%H:%M:%SZ}",))
    told = answer(RunFacts(over, agent=queued(), timers=(worker(),)))
    assert "The first of these times was 60 s ago." in told.why
    assert told.do[0] == f"handoff signal {JOB} a JSON"


def test_an_agent_that_is_gone_or_paused_is_named_first() -> None:
    gone = queued(owner=None, members=0, workers=(worker(3, ended_at=ago(9), clean=True),))
    told = answer(RunFacts(RUN, (BOOKS,), 1, gone))
    assert "No worker runs the join agent, which moves runs on." in told.why
    assert told.do[0] == "handoff worker join --slot 3"
    told = answer(RunFacts(RUN, agent=queued(workers=(worker(paused="Postgres is away"),))))
    assert "The join agent is paused: Postgres is away." in told.why


def test_a_run_that_is_over_is_about_to_be_committed() -> None:
    ended = replace(RUN, status="ended", ended_at=ago(1), waits=())
    assert "its run of refund has ended; the join agent has yet to" in answer(RunFacts(ended)).why


def test_a_run_that_failed_or_is_parked_is_told_by_its_letter() -> None:
    error = JobError(kind="code_changed", message="The code does not fit.")
    for status, of in ((Status.FAILED, "failed"), (Status.WAITING, "parked")):
        told = answer(
            RunFacts(replace(RUN, status=of)), state=state(status, stage="join", seq=3, error=error)
        )
        assert (told.code, "code_changed: The code does not fit." in told.why) == (
            Code.FAILED,
            True,
        )


def _event(position: int, kind: str, ref: str, step: int | None, **more: Any) -> RunEvent:
    values = {"detail": "", "value": None, "ended": None, "ended_to": None, **more}
    return RunEvent(1, position, kind, ref, at=NOW, step=step, happened_at=NOW, **values)


def test_a_step_tells_all_that_came_since_the_one_before_it() -> None:
    events = [
        _event(1, "start", "", 2),
        _event(4, "call", "0", None, detail="done"),
        _event(7, "signal", "5f", 3, detail="ok", value={"by": "ann", "value": True}),
        _event(8, "timer", "2", 4, ended="done", ended_to="sink"),
    ]
    commands = [
        RunCommand(1, 0, "call", "score", 0, False, None, 1),
        RunCommand(1, 1, "signal", "ok", None, False, None, 1),
        RunCommand(1, 2, "sleep", "", None, False, NOW, 7),
    ]
    assert moves_of([RUN], events, commands) == {
        1: RunMove("refund", (), (), "", begins=True),
        2: RunMove("refund", ("start",), ("call score (/0)", "signal ok"), ""),
        3: RunMove(
            "refund",
            ("call score (/0) done", "signal ok by ann: true"),
            ("sleep until 2026-03-01T12:00:00Z",),
            "",
        ),
        4: RunMove("refund", ("sleep over",), (), "handed to sink"),
    }
