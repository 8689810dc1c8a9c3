"""Facts in, one answer out: each answer, and which one comes first where several hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from schemas.state import JobError, Status
from streams.deadletter.actions import Acted
from streams.deadletter.letters import Place
from streams.state.views import Effect
from streams.why import Code, explain
from streams.why.facts import (
    Facts,
    LetterFacts,
    Looked,
    Queued,
    Started,
    State,
    TimerFacts,
    WorkerRow,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "77aa0000000000000000000000000001"
KEY = f"{JOB}:act:0:mail"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def state(status: Status = Status.RUNNING, **changes: Any) -> State:
    made = State(
        job=JOB,
        flow="mail",
        stage="classify",
        status=status,
        seq=1,
        attempts=1,
        to=("enrich",) if status is Status.RUNNING else (),
        error=None,
        wakes_at=None,
        updated_at=ago(100),
    )
    return replace(made, **changes)


def worker(slot: int = 0, **changes: Any) -> WorkerRow:
    made = WorkerRow(
        slot=slot,
        incarnation="ab12",
        pid=4711,
        host="node-1",
        seen_at=ago(2),
        ended_at=None,
        clean=None,
        paused=None,
        paused_since=None,
        account={
            "limit_s": 300.0,
            "attempts": 3,
            "in_work": 1,
            "waiting": 1,
            "read": {"2": 40},
            "runs": [],
            "waits": [],
        },
    )
    return replace(made, **changes)


def account(**changes: Any) -> dict[str, Any]:
    return {**(worker().account or {}), **changes}


def queued(**changes: Any) -> Queued:
    made = Queued(
        stage="enrich",
        topic="mail.enrich",
        partition=2,
        offset=42,
        step=2,
        written_at=ago(100),
        head=30,
        end=50,
        ahead=7,
        per_s=None,
        owner=0,
        partitions=4,
        members=1,
        group_state="STABLE",
        workers=(worker(),),
    )
    return replace(made, **changes)


def facts(**changes: Any) -> Facts:
    return replace(Facts(JOB, NOW, 30.0, state(), "mail"), **changes)


def effect(status: str, **changes: Any) -> Effect:
    made = Effect(
        key=KEY,
        trace_id=JOB,
        flow="mail",
        stage="act",
        name="mail",
        status=status,
        idempotent=False,
        calls=1,
        result=None,
        note="attempt 1 of slot 0 ended without an answer",
        claimed_at=ago(60),
        leased_until=ago(10),
        settled_at=None,
    )
    return replace(made, **changes)


def acted(action: str, **changes: Any) -> Acted:
    sent = None if action == "discard" else "mail.act"
    made = Acted(action, "ada", "why not", UUID(int=1), "00", None, sent, 1, 9, ago(20))
    return replace(made, **changes)


def letter(*actions: Acted) -> LetterFacts:
    place = Place("mail.act.dlq", 3, 17)
    return LetterFacts(place, "rejected", "not wanted", ago(90), tuple(actions))


PARKED = state(
    Status.WAITING, stage="act", error=JobError(kind="in_doubt", message="may have happened")
)
FAILED = state(Status.FAILED, stage="act", error=JobError(kind="rejected", message="not wanted"))
WAITING = state(
    Status.WAITING,
    stage="act",
    wakes_at=NOW + timedelta(seconds=90),
    error=JobError(kind="retry", message="Attempt 1 of 3: the desk is busy"),
)


# -- over ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (Status.DONE, Code.DONE, "It is done: stage classify ended it at 2026-03-01 11:58:20Z"),
        (Status.CANCELLED, Code.CANCELLED, "It was cancelled: stage classify ended it"),
    ],
)
def test_what_is_over_is_over_since_when(status: Status, code: Code, said: str) -> None:
    answer = explain(facts(state=state(status)), NOW)
    assert answer.code is code
    assert said in answer.why
    assert answer.do == (f"handoff jobs show {JOB}",)


def test_a_failure_without_a_letter_says_that_it_cannot_be_redriven() -> None:
    answer = explain(facts(state=FAILED), NOW)
    assert (answer.code, answer.stage) == (Code.FAILED, "act")
    assert "rejected: not wanted. There is no dead letter" in answer.why


# -- in a topic ------------------------------------------------------------------------------


def test_a_group_without_members_names_the_slots_that_are_gone_and_the_command() -> None:
    gone = (
        worker(0, ended_at=ago(50), clean=True),
        worker(1, seen_at=ago(500)),
        worker(2, seen_at=ago(90), ended_at=ago(50), clean=False),
    )
    q = queued(owner=None, members=0, group_state="EMPTY", workers=gone)
    answer = explain(facts(queued=q), NOW)
    assert (answer.code, answer.stage) == (Code.NO_WORKER, "enrich")
    assert "lies before stage enrich at mail.enrich[2]@42 since 2026-03-01 11:58:20Z" in answer.why
    assert "group mail.enrich has no member. Slot 0 (pid 4711 on node-1) was stopped" in answer.why
    assert "slot 1 (pid 4711 on node-1) was last heard of at 2026-03-01 11:51:40Z and is lost" in (
        answer.why
    )
    assert "slot 2 (pid 4711 on node-1) died and was last heard of" in answer.why
    assert answer.do == ("handoff worker enrich --slot 1",), "the first that did not stop itself"
    assert [w["slot"] for w in answer.facts["workers"]] == [0, 1, 2]


def test_a_slot_that_was_heard_of_lately_may_be_about_to_join() -> None:
    answer = explain(facts(queued=queued(owner=None, members=0, group_state="EMPTY")), NOW)
    assert answer.code is Code.NO_WORKER
    assert "was heard of at 2026-03-01 11:59:58Z: it is about to join, or has died since." in (
        answer.why
    )


def test_a_partition_that_is_being_handed_out_is_said_to_be() -> None:
    q = queued(owner=None, members=2, group_state="PREPARING_REBALANCING")
    answer = explain(facts(queued=q), NOW)
    assert answer.code is Code.NO_WORKER
    assert "none of the 2 members of group mail.enrich owns mail.enrich[2]" in answer.why
    assert "ask again in some seconds" in answer.why


def test_a_worker_that_stopped_is_no_worker_though_it_is_a_member_until_its_session_ends() -> None:
    stopped = worker(ended_at=ago(1), clean=True)
    answer = explain(facts(queued=queued(workers=(stopped,))), NOW)
    assert answer.code is Code.NO_WORKER
    assert "its session" not in answer.why
    assert "the session of the last one has not expired yet" in answer.why


def test_a_member_that_others_declared_dead_still_works_and_is_silent() -> None:
    silent = worker(seen_at=ago(100), ended_at=ago(50), clean=False)
    answer = explain(facts(queued=queued(workers=(silent,))), NOW)
    assert answer.code is Code.LAG
    assert "has not been heard of, though it is a member of its group" in answer.why


def test_a_run_is_told_with_its_attempt_its_start_and_its_limit() -> None:
    row = worker(account=account(runs=[[OTHER, 1, 9.0], [JOB, 2, 10.0]]))
    claimed = effect("claimed", leased_until=NOW + timedelta(seconds=50))
    answer = explain(facts(queued=queued(workers=(row,)), effects=[claimed]), NOW)
    assert answer.code is Code.IN_WORK
    assert "Attempt 2 is in work at stage enrich, in slot 0, since 2026-03-01 11:59:48Z" in (
        answer.why
    )
    assert "its time limit is 5 min. It calls its effect mail" in answer.why
    assert answer.facts["since"] == ago(12)


def test_a_run_beyond_its_limit_does_not_listen_and_the_process_is_named() -> None:
    row = worker(account=account(runs=[[JOB, 1, 400.0]]))
    answer = explain(facts(queued=queued(workers=(row,))), NOW)
    assert answer.code is Code.IN_WORK
    assert "longer than its time limit" in answer.why
    assert "end the worker (pid 4711 on node-1)" in answer.why


def test_a_paused_stage_says_why_and_since_when() -> None:
    row = worker(paused="the desk is away", paused_since=ago(30))
    answer = explain(facts(queued=queued(workers=(row,))), NOW)
    assert answer.code is Code.PAUSED
    assert "paused since 2026-03-01 11:59:30Z, says its worker in slot 0: the desk is away. It" in (
        answer.why
    )
    assert answer.facts["since"] == ago(30)


def test_a_wait_in_place_says_which_attempt_and_until_when() -> None:
    row = worker(account=account(waits=[[JOB, 1, 20.0, "Attempt 1 of 3: the desk is busy"]]))
    answer = explain(facts(queued=queued(workers=(row,))), NOW)
    assert answer.code is Code.BACKOFF
    assert "It waits for attempt 2 of 3 at stage enrich" in answer.why
    assert "until 2026-03-01 12:00:18Z. Attempt 1 of 3: the desk is busy." in answer.why
    assert answer.facts["until"] == NOW + timedelta(seconds=18)


def test_a_wait_for_a_limit_says_which_and_how_many_are_before_it() -> None:
    limit = "limit model (20 per second) of 'acme'"
    row = worker(account=account(limits=[[JOB, 3.0, 57, limit]], limited=58, read={"2": 50}))
    answer = explain(facts(queued=queued(workers=(row,))), NOW)
    assert answer.code is Code.LIMITED
    assert answer.why == (
        "It waits at stage enrich, in the worker in slot 0, for the limit model (20 per second) of "
        "'acme', since 2026-03-01 11:59:55Z; there 57 are before it."
    )
    assert answer.facts["before"] == 57
    unnamed = worker(account=account(limited=5_000, read={"2": 50}))
    answer = explain(facts(queued=queued(workers=(unnamed,))), NOW)
    assert "1 wait for their next attempt, 5,000 wait for a limit; the others" in answer.why


def test_what_is_delivered_and_neither_runs_nor_waits_is_in_the_workers_hands() -> None:
    row = worker(account=account(read={"2": 43}))
    answer = explain(facts(queued=queued(workers=(row,))), NOW)
    assert answer.code is Code.IN_WORK
    assert "was delivered before 2026-03-01 11:59:58Z, and is not committed yet" in answer.why


def test_what_the_journal_has_started_is_in_work_and_deaths_are_told() -> None:
    started = Started(3, 0, "ab12", ago(5))
    answer = explain(facts(queued=queued(started=started)), NOW)
    assert answer.code is Code.IN_WORK
    assert "was started at 2026-03-01 11:59:55Z" in answer.why
    assert "A worker died 2 times while it was in work" in answer.why
    before = explain(facts(queued=queued(started=replace(started, incarnation="old"))), NOW)
    assert before.code is Code.LAG
    assert "A worker died 3 times while it was in work" in before.why


def test_what_waits_its_turn_counts_those_before_it_and_how_fast_they_go() -> None:
    answer = explain(facts(queued=queued(per_s=3.5)), NOW)
    assert answer.code is Code.LAG
    assert "7 unfinished records are before it in mail.enrich[2], and slot 0 works there" in (
        answer.why
    )
    assert "It finishes some 4 records/s: about 2 s to go." in answer.why
    assert answer.do == ("handoff worker enrich --slot 1",)
    assert {"offset": 42, "committed": 30, "ahead": 7, "per_s": 3.5}.items() <= answer.facts.items()


def test_a_group_that_does_not_move_or_has_a_member_for_each_partition() -> None:
    answer = explain(facts(queued=queued(per_s=0.0, members=4)), NOW)
    assert "It finished nothing within the last second." in answer.why
    assert answer.do == (), "one more would have no partition"


def test_a_record_that_was_not_reached_has_at_least_so_many_before_it() -> None:
    answer = explain(facts(queued=queued(offset=None, written_at=None, ahead=200_000)), NOW)
    assert answer.code is Code.LAG
    assert "at least 200,000 unfinished records are before it in mail.enrich[2]" in answer.why
    assert answer.facts["ahead_is_all"] is False


def test_a_submission_without_a_state_is_explained_by_its_record() -> None:
    answer = explain(facts(state=None, queued=queued(step=1, ahead=0)), NOW)
    assert answer.code is Code.LAG
    assert "Its submission lies before stage enrich" in answer.why
    assert "it is the next one there" in answer.why


# -- a person --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "doubtful", [effect("in_doubt"), effect("claimed")], ids=["settled so", "a dead attempt's"]
)
def test_an_effect_in_doubt_names_its_key_its_call_and_since_when(doubtful: Effect) -> None:
    answer = explain(facts(state=PARKED, effects=[doubtful], letter=letter()), NOW)
    assert (answer.code, answer.stage) == (Code.IN_DOUBT, "act")
    assert "whether its effect mail at stage act has happened: one call, the last" in answer.why
    assert "Attempt 1 of slot 0 ended without an answer. Look at the target by" in answer.why
    assert answer.do[0].startswith(f"handoff effects resolve '{KEY}' --happened")
    assert answer.do[-1] == f"handoff dlq redrive {JOB}"
    assert [e["key"] for e in answer.facts["effects"]] == [KEY]


@pytest.mark.parametrize(
    "settled",
    [
        effect("claimed", leased_until=NOW + timedelta(seconds=5)),
        effect("claimed", idempotent=True),
        effect("done"),
    ],
)
def test_an_effect_that_is_not_in_doubt_holds_nothing(settled: Effect) -> None:
    answer = explain(facts(state=PARKED, effects=[settled], letter=letter()), NOW)
    assert answer.code is Code.DEAD_LETTER


def test_a_parked_job_whose_effect_is_resolved_needs_only_a_redrive() -> None:
    done = effect("done", note="resolved by ada: happened (log)")
    answer = explain(facts(state=PARKED, effects=[done], letter=letter()), NOW)
    assert "It waits for a person at stage act" in answer.why
    assert "Its effect mail was resolved by ada: happened (log)." in answer.why
    assert f"handoff dlq redrive {JOB}" in answer.do


def test_an_open_letter_says_where_it_is_and_how_to_redrive_it() -> None:
    answer = explain(facts(state=FAILED, letter=letter()), NOW)
    assert (answer.code, answer.stage) == (Code.DEAD_LETTER, "act")
    assert "its record is dead letter mail.act.dlq/3/17. rejected: not wanted. Nobody" in answer.why
    assert answer.do == ("handoff dlq show mail.act.dlq/3/17", f"handoff dlq redrive {JOB}")


def test_a_discarded_letter_says_by_whom_and_why() -> None:
    answer = explain(facts(state=FAILED, letter=letter(acted("discard"))), NOW)
    assert "ada discarded it at 2026-03-01 11:59:40Z (why not)." in answer.why
    assert answer.facts["actions"][0]["action"] == "discard"


def test_a_redriven_letter_without_a_further_step_says_where_its_record_went() -> None:
    answer = explain(facts(state=FAILED, letter=letter(acted("redrive"))), NOW)
    assert "ada redrove it at 2026-03-01 11:59:40Z (why not) to mail.act[1]@9" in answer.why
    assert answer.do == ("handoff dlq show mail.act.dlq/3/17",), "not once more"


# -- a time ----------------------------------------------------------------------------------


def timers(**changes: Any) -> TimerFacts:
    made = TimerFacts(WAITING.wakes_at, None, 0, (worker(account=None),))
    return replace(made, **changes)


def test_a_timer_says_when_it_is_due_and_why_it_waits() -> None:
    answer = explain(facts(state=WAITING, timer=timers()), NOW)
    assert (answer.code, answer.stage, answer.do) == (Code.TIMER, "act", ())
    assert "due at 2026-03-01 12:01:30Z, in 90 s. Attempt 1 of 3: the desk is busy." in answer.why


def test_a_timer_that_nobody_would_return_says_so_before_it_is_due() -> None:
    answer = explain(facts(state=WAITING, timer=timers(workers=())), NOW)
    assert "No process has ever run the timers, so it would not come back" in answer.why
    assert answer.do == ("handoff worker timers",)


def test_an_overdue_timer_names_who_should_have_returned_it() -> None:
    gone = (worker(seen_at=ago(400)),)
    answer = explain(facts(state=WAITING, timer=timers(due_at=ago(300), workers=gone)), NOW)
    assert answer.code is Code.TIMER
    assert "that is 5 min ago. Nobody runs the timers: slot 0 (pid 4711 on node-1)" in answer.why
    assert answer.do == ("handoff worker timers",)
    assert answer.facts["overdue_s"] == 300


def test_an_overdue_timer_whose_dispatcher_is_paused_says_why() -> None:
    paused = (worker(paused="Kafka at k:9092 does not serve", paused_since=ago(60)),)
    answer = explain(facts(state=WAITING, timer=timers(due_at=ago(30), workers=paused)), NOW)
    assert "are paused since 2026-03-01 11:59:00Z: Kafka at k:9092 does not serve" in answer.why


def test_a_timer_that_is_not_stored_yet_and_one_that_kafka_refuses() -> None:
    unread = explain(facts(state=WAITING, timer=timers(due_at=None, unread=12)), NOW)
    assert unread.code is Code.TIMER
    assert "It is not in Postgres yet: up to 12 timers are unread." in unread.why
    refused = explain(facts(state=WAITING, timer=timers(refused="Topic x does not exist.")), NOW)
    assert "Kafka has refused it: Topic x does not exist." in refused.why


# -- nowhere ---------------------------------------------------------------------------------


def test_a_hand_off_that_is_not_there_is_lost() -> None:
    answer = explain(facts(), NOW)
    assert (answer.code, answer.stage) == (Code.LOST, "enrich")
    assert "Stage classify handed it to enrich at 2026-03-01 11:58:20Z, but no record" in answer.why
    assert "handoff audit" in answer.do


def test_a_returned_timer_that_is_not_there_is_lost() -> None:
    answer = explain(facts(state=WAITING, timer=timers(due_at=None)), NOW)
    assert answer.code is Code.LOST
    assert "Its timer, due at 2026-03-01 12:01:30Z, has returned it to act" in answer.why


def test_what_nobody_knows_says_what_was_looked_at_and_how_far_back() -> None:
    looked = (Looked("mail.classify", 3, (0, 17)), Looked("mail.act", 200_000, (5,), whole=False))
    answer = explain(facts(state=None, flow="", looked=looked), NOW)
    assert (answer.code, answer.stage) == (Code.NOT_THERE, "")
    assert "mail.classify (3 unfinished records read; it begins at offsets 0, 17)" in answer.why
    assert "mail.act (200,000 unfinished records read, there are more; it begins at offset 5)" in (
        answer.why
    )
    assert answer.facts["looked"][0] == {
        "topic": "mail.classify",
        "read": 3,
        "begins": [0, 17],
        "whole": True,
    }


# -- precedence ------------------------------------------------------------------------------

_BUSY = worker(
    paused="the desk is away",
    account=account(runs=[[JOB, 1, 9.0]], waits=[[JOB, 1, 9.0, "busy"]], read={"2": 50}),
)
_LIMITED = worker(account=account(limits=[[JOB, 9.0, 3, "limit model"]], read={"2": 50}))
#: Each holds together with all that come after it.
_ORDER: list[tuple[Code, dict[str, Any]]] = [
    (Code.DONE, {"state": state(Status.DONE)}),
    (Code.NO_WORKER, {"queued": queued(owner=None, members=0, workers=(_BUSY,))}),
    (Code.IN_WORK, {"queued": queued(workers=(_BUSY,))}),
    (
        Code.PAUSED,
        {
            "queued": queued(
                workers=(replace(_BUSY, account={**(_BUSY.account or {}), "runs": []}),)
            )
        },
    ),
    (
        Code.BACKOFF,
        {
            "queued": queued(
                workers=(worker(account=account(waits=[[JOB, 1, 9.0, "busy"]], read={"2": 50})),)
            )
        },
    ),
    (Code.LIMITED, {"queued": queued(workers=(_LIMITED,))}),
    (Code.IN_WORK, {"queued": queued(workers=(worker(account=account(read={"2": 50})),))}),
    (Code.LAG, {"queued": queued()}),
    (Code.IN_DOUBT, {"queued": None}),
    (Code.DEAD_LETTER, {"effects": ()}),
    (Code.FAILED, {"letter": None}),
    (Code.TIMER, {"state": WAITING, "timer": timers()}),
    (Code.LOST, {"timer": None}),
    (Code.NOT_THERE, {"state": None}),
]


@pytest.mark.parametrize(
    "n", range(len(_ORDER)), ids=[f"{n} {c}" for n, (c, _) in enumerate(_ORDER)]
)
def test_the_first_cause_in_the_order_is_the_answer(n: int) -> None:
    found = facts(state=PARKED, effects=[effect("in_doubt")], letter=letter())
    for code, change in _ORDER[1 : n + 1] if n else _ORDER[:1]:
        found = replace(found, **change)
        expected = code
    if n == 0:
        expected = Code.DONE
        found = replace(found, queued=queued(owner=None))
    assert explain(found, NOW).code is expected


# -- the projection --------------------------------------------------------------------------


def test_a_projection_that_is_behind_is_said_in_addition() -> None:
    behind = facts(state=state(projected=False), queued=queued(), behind=12)
    answer = explain(behind, NOW)
    assert answer.code is Code.LAG
    assert answer.projection_behind == 12
    assert "Postgres is up to 12 records behind job-state" in answer.also
    assert "its last step was read from there" in answer.also
    assert "No projector runs: handoff worker projector." in answer.also
    kept = replace(behind, projectors=(worker(account=None),))
    assert "No projector runs" not in explain(kept, NOW).also
    assert explain(facts(queued=queued()), NOW).also == ""
    # It has the job's last step, and will have the others' soon.
    usual = replace(kept, state=state())
    assert (explain(usual, NOW).projection_behind, explain(usual, NOW).also) == (12, "")


def test_an_answer_that_may_be_stale_says_so() -> None:
    answer = explain(facts(queued=queued(), behind=900_000, behind_read=False), NOW)
    assert "too many to be read here, so this answer may be stale" in answer.also
