"""Causes of a job whose record lies in a stage's topic: nobody works there, it runs, its stage is
paused, it waits in place, it was delivered, others are before it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from schemas.ids import parent_of
from schemas.state import Status
from streams.state.forks import waits_for_branches
from streams.state.views import Effect
from streams.why.cause import Cause, Code
from streams.why.facts import Facts, Queued, WorkerRow
from streams.why.wording import (
    at,
    capital,
    ended,
    life,
    lives,
    sentence,
    silence,
    span,
    worker_facts,
)


def ordered(facts: Facts, _: datetime) -> Cause | None:
    """A person has paused the stage; what runs there goes on."""
    q, order = facts.queued, facts.pause
    if q is None or order is None or _entry(facts, "runs") is not None:
        return None
    why = sentence(f"{_lies(facts, q)}, and the stage is paused {order.said}")
    more = {"paused_by": order.by, "paused_at": order.at, "reason": order.reason}
    do = (f"handoff stage resume {order.target}",)
    return Cause(Code.PAUSED, q.stage, why, do, {**_queue_facts(q), **more})


def no_worker(facts: Facts, now: datetime) -> Cause | None:
    """Its last worker may be a member still: static ones stay so until their session expires."""
    q = facts.queued
    if q is None or (q.owner is not None and q.owner_ended is None):
        return None
    if q.owner_ended is not None:
        whom = f"no worker runs stage {q.stage}; the session of the last one has not expired yet"
    elif q.members:
        whom = f"none of the {q.members} members of group {q.topic} owns {q.topic}[{q.partition}]"
        if q.group_state not in ("STABLE", "EMPTY", "DEAD"):
            whom += " while the group hands out its partitions; ask again in some seconds"
    else:
        whom = f"no worker runs stage {q.stage}: group {q.topic} has no member"
    past = "; ".join(_past(w, facts, now) for w in q.workers)
    why = f"{_lies(facts, q)}, and {whom}. {capital(past)}".rstrip(" .") + "."
    return Cause(Code.NO_WORKER, q.stage, why, _starts(q), _queue_facts(q))


def running(facts: Facts, now: datetime) -> Cause | None:
    q = facts.queued
    run = _entry(facts, "runs")
    row = q.owner_row if q is not None else None
    if q is None or run is None or row is None:
        return None
    _, attempt, for_s = run
    since = row.seen_at - timedelta(seconds=for_s)
    limit_s = float((row.account or {}).get("limit_s") or 0)
    why = f"Attempt {attempt} is in work at stage {q.stage}, in slot {q.owner}, since {at(since)}"
    over = (now - since).total_seconds() > limit_s > 0
    do: tuple[str, ...] = ()
    if over:
        why += (
            f": longer than its time limit of {span(limit_s)}. It was cancelled and does not "
            f"listen; end the worker (pid {row.pid} on {row.host}): others run its records again"
        )
    elif limit_s:
        why += f"; its time limit is {span(limit_s)}"
    more = {"attempt": attempt, "since": since, "limit_s": limit_s, "worker": worker_facts(row)}
    why = sentence(why) + _calls(facts.effects) + silence(row, facts, now)
    return Cause(Code.IN_WORK, q.stage, why, do, {**_queue_facts(q), **more})


def paused(facts: Facts, now: datetime) -> Cause | None:
    q = facts.queued
    row = q.owner_row if q is not None else None
    if q is None or row is None or row.paused is None:
        return None
    since = f" since {at(row.paused_since)}" if row.paused_since is not None else ""
    why = (
        f"Stage {q.stage} is paused{since}, says its worker in slot {q.owner}: "
        f"{ended(row.paused)} It goes on by itself once that is mended."
    )
    more = {"paused": row.paused, "since": row.paused_since, "worker": worker_facts(row)}
    return Cause(
        Code.PAUSED,
        q.stage,
        why + silence(row, facts, now),
        ("handoff doctor",),
        {**_queue_facts(q), **more},
    )


def backoff(facts: Facts, now: datetime) -> Cause | None:
    q = facts.queued
    wait = _entry(facts, "waits")
    row = q.owner_row if q is not None else None
    if q is None or wait is None or row is None:
        return None
    _, attempt, left_s, reason = wait
    until = row.seen_at + timedelta(seconds=left_s)
    limit = (row.account or {}).get("attempts")
    of = f" of {limit}" if limit else ""
    over = " (that is over: it is about to run)" if until <= now else ""
    why = (
        f"It waits for attempt {attempt + 1}{of} at stage {q.stage}, in the worker in slot "
        f"{q.owner}, until {at(until)}{over}. {ended(reason)}"
    ).rstrip()
    more = {
        "attempt": attempt + 1,
        "attempts": limit,
        "until": until,
        "reason": reason,
        "worker": worker_facts(row),
    }
    return Cause(
        Code.BACKOFF, q.stage, why + silence(row, facts, now), (), {**_queue_facts(q), **more}
    )


def limited(facts: Facts, now: datetime) -> Cause | None:
    q = facts.queued
    wait = _entry(facts, "limits")
    row = q.owner_row if q is not None else None
    if q is None or wait is None or row is None:
        return None
    _, waited_s, before, limit = wait
    since = row.seen_at - timedelta(seconds=waited_s)
    many = "it is the next one" if not before else f"{before:,} {_are(before)} before it"
    why = sentence(
        f"It waits at stage {q.stage}, in the worker in slot {q.owner}, for the {limit}, since "
        f"{at(since)}; there {many}"
    )
    more = {"limit": limit, "since": since, "before": before, "worker": worker_facts(row)}
    return Cause(
        Code.LIMITED, q.stage, why + silence(row, facts, now), (), {**_queue_facts(q), **more}
    )


def delivered(facts: Facts, now: datetime) -> Cause | None:
    q = facts.queued
    row = q.owner_row if q is not None else None
    if q is None or row is None or q.offset is None:
        return None
    account = row.account or {}
    read = account.get("read", {}).get(str(q.partition), 0)
    if q.started is not None and q.started.incarnation == row.incarnation:
        since = f"was started at {at(q.started.last_at)}"
    elif read > q.offset:
        since = f"was delivered before {at(row.seen_at)}"
    else:
        return None
    why = sentence(
        f"Its record at {q.place} is in the hands of the worker of stage {q.stage} in slot "
        f"{q.owner}: it {since}, and is not committed yet. Of the records there "
        f"{account.get('in_work', 0)} run and {account.get('waiting', 0)} wait for their next "
        f"attempt{_limited(account)}; the others wait for a place or behind an earlier record of "
        "their job"
    )
    why += _deaths(q) + _calls(facts.effects) + silence(row, facts, now)
    return Cause(Code.IN_WORK, q.stage, why, (), {**_queue_facts(q), "worker": worker_facts(row)})


def lag(facts: Facts, now: datetime) -> Cause | None:
    q = facts.queued
    if q is None:
        return None
    if q.offset is None:
        before = f"at least {q.ahead:,} unfinished records are before it in {q.place}"
    elif q.ahead:
        many = "1 unfinished record is" if q.ahead == 1 else f"{q.ahead:,} unfinished records are"
        before = f"{many} before it in {q.topic}[{q.partition}]"
    else:
        before = "it is the next one there"
    who = f"slot {q.owner}" if (q.owner or 0) >= 0 else "a member that is no worker of ours"
    why = sentence(f"{_lies(facts, q)}; {before}, and {who} works there")
    if q.per_s:
        why += f" It finishes some {q.per_s:,.0f} records/s: about {span(q.ahead / q.per_s)} to go."
    elif q.per_s is not None:
        why += " It finished nothing within the last second."
    row = q.owner_row
    why += _deaths(q) + (silence(row, facts, now) if row is not None else "")
    more = q.ahead > 0 and q.members < q.partitions
    return Cause(Code.LAG, q.stage, why, (_start(q, q.members),) if more else (), _queue_facts(q))


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _limited(account: Mapping[str, Any]) -> str:
    count = account.get("limited", 0)
    return f", {count:,} wait for a limit" if count else ""


def _lies(facts: Facts, q: Queued) -> str:
    """Where its record is, and since when."""
    since = f" since {at(q.written_at)}" if q.written_at is not None else ""
    what = "Its record"
    if q.step == 1:
        what = "Its first record" if parent_of(facts.job) else "Its submission"
    state = facts.state
    if state is not None and waits_for_branches(state.status, state.to):
        what = "A record of its join"
    elif state is not None and state.status is not Status.RUNNING:
        what += ", which was brought back,"
    return f"{what} lies before stage {q.stage} at {q.place}{since}"


def _entry(facts: Facts, name: str) -> Any:
    """What the owner's account says of this job under `runs` or `waits`."""
    row = facts.queued.owner_row if facts.queued is not None else None
    entries = (row.account or {}).get(name, ()) if row is not None else ()
    return next((entry for entry in entries if entry[0] == facts.job), None)


def _past(w: WorkerRow, facts: Facts, now: datetime) -> str:
    """Of a slot that is no member, or stays one for a little while only."""
    doubt = ": it is about to join, or has died since" if lives(w, facts, now) else ""
    return life(w, facts, now) + doubt


def _starts(q: Queued) -> tuple[str, ...]:
    """The command for the slot that is missing, or for any."""
    gone = [w for w in q.workers if w.clean is not True] or list(q.workers)
    return (_start(q, min((w.slot for w in gone), default=0)),)


def _start(q: Queued, slot: int) -> str:
    return f"handoff worker {q.stage} --slot {slot}"


def _deaths(q: Queued) -> str:
    """What the journal tells of a record that was started before."""
    before = q.started
    if before is None:
        return ""
    row = q.owner_row
    now_running = row is not None and row.incarnation == before.incarnation
    deaths = before.starts - 1 if now_running else before.starts
    if not deaths:
        return ""
    times = "once" if deaths == 1 else f"{deaths} times"
    return (
        f" A worker died {times} while it was in work, so it is run again with few others or "
        "alone, and is dead-lettered if it kills again and again."
    )


def _calls(effects: Iterable[Effect]) -> str:
    claimed = [e for e in effects if e.status == "claimed"]
    if not claimed:
        return ""
    return f" It calls its effect {claimed[0].name}, claimed at {at(claimed[0].claimed_at)}."


def _queue_facts(q: Queued) -> dict[str, Any]:
    return {
        "topic": q.topic,
        "partition": q.partition,
        "offset": q.offset,
        "next_step": q.step,
        "written_at": q.written_at,
        "committed": q.head,
        "end": q.end,
        "ahead": q.ahead,
        "ahead_is_all": q.offset is not None,
        "per_s": None if q.per_s is None else round(q.per_s, 1),
        "owner_slot": q.owner,
        "members": q.members,
        "group_state": q.group_state,
        "workers": [worker_facts(w) for w in q.workers],
    }
