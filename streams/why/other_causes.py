"""Causes of a job that has no record in a stage's topic: it is over, it waits for a person or for a
time, or it cannot be found. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.state import JOIN, Status
from streams.deadletter.actions import Acted
from streams.state.forks import waits_for_branches
from streams.state.views import Effect
from streams.why.cause import Cause, Code
from streams.why.facts import Facts, State, WorkerRow
from streams.why.wording import at, capital, ended, life, lives, sentence, span, worker_facts

#: A timer that is due returns within a second; later than this, something keeps it.
OVERDUE: Final = timedelta(seconds=5)


def over(facts: Facts, _: datetime) -> Cause | None:
    state = facts.state
    if state is None or state.status not in (Status.DONE, Status.CANCELLED):
        return None
    code = Code.DONE if state.status is Status.DONE else Code.CANCELLED
    how = "It is done" if code is Code.DONE else "It was cancelled"
    result = f", handed to {', '.join(state.to)}" if state.to else ""
    why = f"{how}: stage {state.stage} ended it at {at(state.updated_at)}{result}."
    if state.error is not None:
        why += f" {ended(state.error.message)}"
    return Cause(code, state.stage, why, (f"handoff jobs show {facts.job}",))


def in_doubt(facts: Facts, now: datetime) -> Cause | None:
    state = facts.state
    if state is None or not _for_a_person(state):
        return None
    doubtful = [e for e in facts.effects if _is_doubtful(e, now)]
    if not doubtful:
        return None
    first = doubtful[0]
    calls = "one call" if first.calls == 1 else f"{first.calls} calls"
    many = f" (and {len(doubtful) - 1} more)" if len(doubtful) > 1 else ""
    why = (
        f"Nobody knows whether its effect {first.name} at stage {first.stage}{many} has happened: "
        f"{calls}, the last claimed at {at(first.claimed_at)}. {capital(ended(first.note or ''))} "
        f"Look at the target by the key {first.key} and say what you found, then redrive the job."
    ).replace("  ", " ")
    resolve = f"handoff effects resolve '{first.key}'"
    do = (
        f"{resolve} --happened --result JSON --reason 'how you know'",
        f"{resolve} --did-not-happen --reason 'how you know'",
        f"handoff dlq redrive {facts.job}",
    )
    more = {"effects": [_effect_facts(e) for e in doubtful]}
    return Cause(Code.IN_DOUBT, first.stage, why, do, more)


def dead_letter(facts: Facts, _: datetime) -> Cause | None:
    state, letter = facts.state, facts.letter
    if state is None or letter is None:
        return None
    last = letter.actions[-1] if letter.actions else None
    error = f"{letter.kind}: {ended(letter.message)}"
    what = "waits for a person" if state.status is Status.WAITING else "failed"
    why = (
        f"It {what} at stage {state.stage} since {at(letter.at)}; its record is dead letter "
        f"{letter.place}. {error} {_deed(last)}{_resolved(facts.effects)}"
    )
    show, redrive = f"handoff dlq show {letter.place}", f"handoff dlq redrive {facts.job}"
    do = (show, redrive) if last is None or last.sent_topic is None else (show,)
    if facts.run is not None:
        do = (f"handoff run {facts.job}", *do)
    elif state.stage == JOIN:
        # Its branches come first: they are named there, with what to do about each.
        do = (f"handoff join {facts.job}", *do)
    return Cause(
        Code.DEAD_LETTER,
        state.stage,
        why,
        do,
        {
            "letter": str(letter.place),
            "kind": letter.kind,
            "error": letter.message,
            "at": letter.at,
            "actions": [_acted_facts(a) for a in letter.actions],
        },
    )


def failed(facts: Facts, _: datetime) -> Cause | None:
    state = facts.state
    if state is None or not (state.status is Status.FAILED or _for_a_person(state)):
        return None
    error = f" {state.error.kind}: {ended(state.error.message)}" if state.error else ""
    what = "failed" if state.status is Status.FAILED else "was parked for a person"
    why = (
        f"It {what} at stage {state.stage} at {at(state.updated_at)}.{error} There is no dead "
        "letter of it (any more), so it cannot be redriven: submit it anew, under another id."
    )
    return Cause(Code.FAILED, state.stage, why, (f"handoff jobs show {facts.job}",))


def timer(facts: Facts, now: datetime) -> Cause | None:
    state, timer = facts.state, facts.timer
    if state is None or timer is None or state.wakes_at is None:
        return None
    if timer.due_at is None and not timer.unread:
        return None
    due_at = timer.due_at or state.wakes_at
    living = [w for w in timer.workers if lives(w, facts, now)]
    late = now - due_at
    reason = ended(state.error.message) if state.error else ""
    why = f"It waits at stage {state.stage} for its timer, due at {at(due_at)}"
    if late > OVERDUE:
        why += f": that is {span(late.total_seconds())} ago. {keepers(timer.workers, facts, now)}"
    else:
        why += f", in {span(max(0.0, -late.total_seconds()))}"
        if not living:
            why += f". {keepers(timer.workers, facts, now)}, so it would not come back"
    do = () if living else ("handoff worker timers",)
    if timer.due_at is None:
        why += f". It is not in Postgres yet: up to {timer.unread:,} timers are unread"
    if timer.refused:
        why += f". Kafka has refused it: {timer.refused.rstrip('.')}"
    more = {
        "due_at": due_at,
        "overdue_s": max(0.0, round(late.total_seconds(), 3)),
        "stored": timer.due_at is not None,
        "refused": timer.refused,
        "workers": [worker_facts(w) for w in timer.workers],
    }
    return Cause(Code.TIMER, state.stage, f"{sentence(why)} {reason}".rstrip(), do, more)


def lost(facts: Facts, _: datetime) -> Cause | None:
    state = facts.state
    if state is None:
        return None
    to = ", ".join(state.to) or state.stage
    handed = f"Stage {state.stage} handed it to {to} at {at(state.updated_at)}"
    if state.wakes_at is not None:
        handed = f"Its timer, due at {at(state.wakes_at)}, has returned it to {to}"
    why = (
        f"{handed}, but no record of it is among the unfinished ones there, and no step followed. "
        "Perhaps the group's offsets were moved forward by a tool, or retention was shorter than "
        "the stop of a worker. The audit looks at everything, and says which jobs are lost."
    )
    return Cause(Code.LOST, to, why, (f"handoff trace {facts.job}", "handoff audit"))


def not_there(facts: Facts, _: datetime) -> Cause:
    topics = [
        f"{x.topic} ({x.records:,} unfinished record{'s' * (x.records != 1)} read"
        f"{'' if x.whole else ', there are more'}; it begins at offset{'s' * (len(x.lows) > 1)} "
        f"{', '.join(map(str, x.lows))})"
        for x in facts.looked
    ]
    read = "; ".join(topics) or "no stage has a topic"
    states = "" if facts.behind_read else " Not all of job-state past the projection was read."
    why = (
        f"Nobody knows a job {facts.job}. Looked at: Postgres (every job that ever took a step), "
        "job-state past the projection, and the stages' topics past what their groups have "
        f"consumed: {read}.{states} So it was never accepted here, or expired before any worker "
        "took it."
    )
    return Cause(
        Code.NOT_THERE,
        "",
        why,
        ("handoff jobs ls",),
        {
            "looked": [
                {"topic": x.topic, "read": x.records, "begins": list(x.lows), "whole": x.whole}
                for x in facts.looked
            ]
        },
    )


def keepers(timers: Iterable[WorkerRow], facts: Facts, now: datetime) -> str:
    """Who should have returned a timer that is overdue."""
    rows = list(timers)
    if not rows:
        return "No process has ever run the timers"
    paused = [w for w in rows if lives(w, facts, now) and w.paused]
    if paused:
        since = f" since {at(paused[0].paused_since)}" if paused[0].paused_since else ""
        return f"The timers in slot {paused[0].slot} are paused{since}: {paused[0].paused}"
    told = "; ".join(life(w, facts, now) for w in rows)
    if any(lives(w, facts, now) for w in rows):
        return f"The timers are kept and should return it within a second or two: {told}"
    return f"Nobody runs the timers: {told}"


def _for_a_person(state: State) -> bool:
    if waits_for_branches(state.status, state.to):
        return False
    return state.status is Status.WAITING and state.wakes_at is None


def _is_doubtful(effect: Effect, now: datetime) -> bool:
    """As `handoff effects ls --in-doubt` has it."""
    dead = effect.status == "claimed" and not effect.idempotent and effect.leased_until <= now
    return effect.status == "in_doubt" or dead


def _deed(last: Acted | None) -> str:
    if last is None:
        return "Nobody has acted on it."
    reason = f" ({last.why})" if last.why else ""
    if last.sent_topic is None:
        return f"{last.who} discarded it at {at(last.acted_at)}{reason}."
    return (
        f"{last.who} redrove it at {at(last.acted_at)}{reason} to {last.sent_topic}"
        f"[{last.sent_partition}]@{last.sent_offset}; that record is consumed, and no step "
        "followed: it was skipped as a duplicate, or the step is being committed."
    )


def _resolved(effects: Iterable[Effect]) -> str:
    """What a person has decided about the job's effects: then a redrive is what is missing."""
    notes = [e for e in effects if (e.note or "").startswith("resolved by")]
    return "".join(f" Its effect {e.name} was {ended(e.note or '')}" for e in notes)


def _effect_facts(e: Effect) -> dict[str, Any]:
    return {
        "key": e.key,
        "name": e.name,
        "stage": e.stage,
        "status": e.status,
        "calls": e.calls,
        "claimed_at": e.claimed_at,
        "note": e.note,
    }


def _acted_facts(a: Acted) -> dict[str, Any]:
    sent = None
    if a.sent_topic is not None:
        sent = f"{a.sent_topic}/{a.sent_partition}/{a.sent_offset}"
    return {"action": a.action, "who": a.who, "why": a.why, "at": a.acted_at, "sent": sent}
