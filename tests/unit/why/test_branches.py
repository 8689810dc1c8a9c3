"""A job that waits for its branches: what is said of them, of its join, and what to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schemas.state import JobError, Status
from streams.state.forks import Branch, Join, Obstacle
from streams.why import Answer, Code, explain
from streams.why.branch_wording import advice, next_of, rule_of, stands, state_of
from streams.why.facts import ForkFacts
from tests.unit.why.test_why_answer import JOB, NOW, ago, facts, queued, state, worker

WAITS = state(Status.WAITING, stage="split", to=("join",), seq=2)
JOIN = Join(
    parent=JOB,
    seq=2,
    flow="mail",
    forked_by="split",
    stage="merge",
    first=0,
    expected=50,
    rule="wait",
    deadline_at=None,
    status="open",
    reason=None,
    done=37,
    failed=1,
    late=0,
    forked_at=ago(60),
    closed_at=None,
)
NO_STEP = Branch(f"{JOB}/4", 4)
RUNS = replace(NO_STEP, stage="part", status=Status.RUNNING, to=("file",), updated_at=ago(5))
RETRIES = replace(
    RUNS,
    status=Status.WAITING,
    to=(),
    error=JobError(kind="retry", message="busy"),
    wakes_at=NOW + timedelta(seconds=30),
)
PARKED = replace(RETRIES, wakes_at=None, error=JobError(kind="in_doubt", message="?"))
FORKED = replace(RUNS, status=Status.WAITING, to=("join",))
FAILED = replace(
    RUNS, status=Status.FAILED, to=(), came=Status.FAILED, error=JobError(kind="bad", message="no.")
)
DONE = replace(RUNS, status=Status.DONE, to=())


def answer(fork: ForkFacts, **changes: Any) -> Answer:
    return explain(facts(**{"state": WAITS, "fork": fork, **changes}), NOW)


@pytest.mark.parametrize(
    ("branch", "said"),
    [
        (NO_STEP, "no step yet"),
        (RUNS, "file · under way since 2026-03-01 11:59:55Z"),
        (RETRIES, "part · waiting until 2026-03-01 12:00:30Z, retry"),
        (PARKED, "part · waiting for a person, in_doubt"),
        (FORKED, "part · waiting for branches of its own"),
        (FAILED, "part · failed: bad: no; dead letter since 2026-03-01 11:59:55Z"),
        (DONE, "part · done, and the join agent has yet to read that"),
        (replace(DONE, came=Status.FAILED), "part · done, and came to the join as failed"),
        (
            replace(DONE, came=Status.DONE, late=True, came_at=ago(1)),
            "part · done; it came at 2026-03-01 11:59:59Z, when the join was over",
        ),
    ],
)
def test_a_branch_is_told_by_its_stage_and_state(branch: Branch, said: str) -> None:
    assert stands(branch) == said


def test_who_waits_for_branches_says_how_many_which_and_what_most_are_at() -> None:
    found = (Obstacle(8, replace(NO_STEP)), Obstacle(4, FORKED), Obstacle(1, FAILED))
    told = answer(ForkFacts(JOIN, (NO_STEP, FORKED, RUNS), found, queued()))
    assert (told.code, told.stage) == (Code.BRANCHES, "split")
    assert "37 of 50 are done, 1 failed, 12 did not come yet. Stage merge then" in told.why
    assert "/4 no step yet; /4 part · waiting for branches of its own; " in told.why
    assert "; and 10 more. 8 of 13 have taken no step yet. Redrive what failed" in told.why
    assert told.do == (f"handoff dlq redrive {JOB}/4", f"handoff join {JOB}")
    assert (told.facts["expected"], told.facts["done"], told.facts["missing"]) == (50, 37, 12)


def test_a_branch_with_branches_of_its_own_is_to_be_asked_in_turn() -> None:
    assert next_of(JOIN, [FORKED]) == (f"handoff join {JOB}/4",)
    assert next_of(JOIN, [RETRIES]) == (f"handoff why {JOB}/4",)
    assert next_of(JOIN, [PARKED]) == (f"handoff dlq redrive {JOB}/4",)


def test_a_join_that_takes_errors_needs_no_redrive_of_what_failed() -> None:
    errors = replace(JOIN, rule="errors")
    assert next_of(errors, [FAILED, RUNS], [Obstacle(9, FAILED)]) == (f"handoff why {JOB}/4",)
    assert next_of(errors, [PARKED]) == (f"handoff dlq redrive {JOB}/4",)
    assert "It goes on by itself" in advice(errors, [FAILED, RUNS])


def test_many_that_failed_are_led_to_the_list_of_dead_letters() -> None:
    assert next_of(JOIN, [FAILED], [Obstacle(9, FAILED)])[-1] == "handoff dlq ls"
    assert next_of(JOIN, [RUNS], [Obstacle(12, RUNS), Obstacle(1, FAILED)]) == (
        f"handoff dlq redrive {JOB}/4",
    ), "the one that failed is not among the first"


def test_a_join_that_is_over_says_so() -> None:
    joined = replace(JOIN, status="joined", done=50, failed=0, closed_at=ago(3))
    assert next_of(joined, []) == ()
    assert advice(joined, []) == "Nothing is to be done: stage merge was handed the results."
    assert state_of(joined) == "joined at 2026-03-01 11:59:57Z"
    told = answer(ForkFacts(joined, agent=queued()))
    assert "the join agent hands the results to stage merge, and has yet to commit that" in told.why
    failed = replace(joined, status="failed", reason="Two are missing.", done=48)
    assert state_of(failed) == "failed at 2026-03-01 11:59:57Z: Two are missing."
    assert next_of(failed, [FAILED]) == (
        f"handoff dlq redrive {JOB}/4",
        f"handoff dlq redrive {JOB}",
    )
    assert "Redrive the dead letters of its branches, then its own" in advice(failed, [FAILED])
    assert advice(failed, []).startswith("Redrive its dead letter: it then waits for all")


def test_an_agent_that_is_gone_or_paused_is_named_first() -> None:
    gone = queued(owner=None, members=0, workers=(worker(3, ended_at=ago(9), clean=True),))
    told = answer(ForkFacts(JOIN, (RUNS,), (Obstacle(13, RUNS),), gone))
    assert "No worker runs the join agent, which would take what they bring." in told.why
    assert "slot 3 (pid 4711 on node-1) was stopped at" in told.why
    assert told.do[0] == "handoff worker join --slot 3"
    paused = queued(workers=(worker(paused="Postgres is away"),))
    told = answer(ForkFacts(JOIN, (RUNS,), (Obstacle(13, RUNS),), paused))
    assert "The join agent is paused: Postgres is away." in told.why
    assert told.do[0] == "handoff doctor"


def test_an_agent_that_is_behind_has_not_counted_what_lies_there() -> None:
    unread = queued(stage="join", topic="mail.join", ahead=1_200)
    told = answer(ForkFacts(JOIN, (DONE,), (Obstacle(13, DONE),), unread), queued=unread)
    assert told.code is Code.BRANCHES
    assert "lies unread at mail.join[2]@42, with 1,200 records before it." in told.why
    assert "All are done, and the join agent has yet to read that." in told.why


def test_a_deadline_says_what_it_does_and_who_keeps_it() -> None:
    due = replace(JOIN, deadline_at=NOW + timedelta(seconds=60), rule="errors")
    told = answer(ForkFacts(due, (RUNS,), (Obstacle(13, RUNS),), queued(), (worker(),)))
    assert "At 2026-03-01 12:01:00Z it is joined without what is missing." in told.why
    assert "handoff worker timers" not in told.do
    assert rule_of(due).endswith("; until 2026-03-01 12:01:00Z")
    late = replace(due, deadline_at=ago(60), rule="fail")
    told = answer(ForkFacts(late, (RUNS,), (Obstacle(13, RUNS),), queued()))
    assert "Its time was up at 2026-03-01 11:59:00Z, 60 s ago. No process has ever" in told.why
    assert told.do[0] == "handoff worker timers"


def test_a_fork_that_its_agent_has_not_read_waits_in_the_join_topic_or_is_lost() -> None:
    unread = queued(stage="join", topic="mail.join", owner=None, members=0, group_state="EMPTY")
    told = answer(ForkFacts(None, agent=unread), queued=unread)
    assert (told.code, told.stage) == (Code.NO_WORKER, "join")
    assert "A record of its join lies before stage join at mail.join[2]@42" in told.why
    told = answer(ForkFacts(None, agent=unread))
    assert (told.code, told.stage) == (Code.LOST, "join")
