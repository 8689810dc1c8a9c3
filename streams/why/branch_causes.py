"""The cause of a job that forked: its branches, of which some have no result yet. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from schemas.state import JOIN
from streams.state.forks import Branch, Join
from streams.why.branch_wording import advice, commonest, next_of, stands
from streams.why.cause import Cause, Code
from streams.why.facts import Facts, ForkFacts, Queued
from streams.why.join_agent import absence
from streams.why.other_causes import OVERDUE, keepers
from streams.why.wording import at, ended, lives, sentence, span, worker_facts


def branches(facts: Facts, now: datetime) -> Cause | None:
    state, fork = facts.state, facts.fork
    if state is None or fork is None or fork.join is None:
        return None
    join = fork.join
    agent, start = absence(fork.agent, facts, now, "which would take what they bring")
    if fork.agent is not None and not agent:
        agent = _behind(facts.queued)
    limit, keep = _limit(join, fork, facts, now)
    why = f"{_waits(join)} {_named(join, fork)}{_most(join, fork)}{limit}{agent}"
    if join.status == "open":
        why += f" {advice(join, fork.named, fork.found)}"
    more = {
        "join": join.id,
        "join_stage": join.stage,
        "expected": join.expected,
        "done": join.done,
        "failed": join.failed,
        "missing": join.missing,
        "rule": join.rule,
        "deadline_at": join.deadline_at,
        "named": [_branch_facts(b) for b in fork.named],
        "workers": [worker_facts(w) for w in fork.agent.workers] if fork.agent else [],
    }
    do = (*start, *keep, *next_of(join, fork.named, fork.found), f"handoff join {facts.job}")
    return Cause(Code.BRANCHES, state.stage, " ".join(why.split()), do, more)


def _waits(join: Join) -> str:
    if join.status == "joined":
        return (
            f"What it waited for has come to join {join.id}, of {join.expected:,} branches; the "
            f"{JOIN} agent hands the results to stage {join.stage}, and has yet to commit that."
        )
    if join.status == "cancelled":
        return (
            f"Its join {join.id} was closed, since the job is cancelled; the {JOIN} agent has yet "
            f"to commit that. {ended(join.reason or '')}"
        )
    if join.status == "failed":
        return (
            f"Its join {join.id} has failed, and the {JOIN} agent has yet to commit that. "
            f"{ended(join.reason or '')}"
        )
    return (
        f"It waits for the branches of its fork, which stage {join.forked_by} made at "
        f"{at(join.forked_at)}: {join.done:,} of {join.expected:,} are done, {join.failed:,} "
        f"failed, {join.missing:,} did not come yet. Stage {join.stage} then gets the results."
    )


def _named(join: Join, fork: ForkFacts) -> str:
    if join.status != "open" or not fork.named:
        return ""
    told = "; ".join(f"/{b.number} {stands(b)}" for b in fork.named)
    more = join.expected - join.done - len(fork.named)
    return sentence(f"Without a result: {told}" + (f"; and {more:,} more" if more > 0 else ""))


def _most(join: Join, fork: ForkFacts) -> str:
    """What keeps most of them, where not all were named."""
    without = join.expected - join.done
    if join.status != "open" or without <= len(fork.named):
        return ""
    return f" {sentence(commonest(fork.found, without))}"


def _limit(join: Join, fork: ForkFacts, facts: Facts, now: datetime) -> tuple[str, tuple[str, ...]]:
    """What is said of the rule and the deadline, and the command if nobody keeps it."""
    rule = {
        "fail": " The first branch that fails fails the job.",
        "errors": " A branch that fails joins with its error.",
    }.get(join.rule, "")
    due_at = join.deadline_at
    if due_at is None or join.status != "open":
        return rule, ()
    what = "is joined without what is missing" if join.rule == "errors" else "fails"
    late = now - due_at
    if late > OVERDUE:
        kept = sentence(keepers(fork.timers, facts, now))
        rule += f" Its time was up at {at(due_at)}, {span(late.total_seconds())} ago. {kept}"
    else:
        rule += f" At {at(due_at)} it {what}."
    alive = any(lives(w, facts, now) for w in fork.timers)
    return rule, () if alive else ("handoff worker timers",)


def _behind(unread: Queued | None) -> str:
    """What the join agent has yet to read of this job: the counts do not have it."""
    if unread is None or unread.stage != JOIN:
        return ""
    return (
        f" The {JOIN} agent is behind: what one of its branches brought lies unread at "
        f"{unread.place}, with {unread.ahead:,} records before it."
    )


def _branch_facts(branch: Branch) -> dict[str, Any]:
    return {
        "job": branch.id,
        "stage": branch.stage,
        "status": branch.status and branch.status.value,
        "stands": stands(branch),
    }
