"""The cause of a job that waits in a run of an orchestration, or for a signal: for which calls,
signals and times. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from schemas.state import JOIN
from streams.state.forks import Branch
from streams.state.runs import Run
from streams.why.branch_wording import stands
from streams.why.cause import Cause, Code
from streams.why.facts import Facts, RunFacts
from streams.why.join_agent import absence
from streams.why.other_causes import OVERDUE, keepers
from streams.why.wording import at, lives, sentence, span, worker_facts

_UNTIL: Final = " until "


def waits(facts: Facts, now: datetime) -> Cause | None:
    """None for one that is parked or failed: its dead letter tells."""
    state, its = facts.state, facts.run
    if state is None or its is None or its.run.status in ("parked", "failed"):
        return None
    run = its.run
    agent, start = absence(its.agent, facts, now, "which moves runs on")
    if run.status == "ended":
        why = (
            f"What it waited for has come, and its run of {run.stage} has ended; the {JOIN} agent "
            f"has yet to commit that.{agent}"
        )
        return Cause(Code.RUN, state.stage, why, (*start, f"handoff run {facts.job}"))
    late, keep = _late(its, facts, now)
    why = f"{_begun(run)} {_calls(its)}{_others(run)}{late}{agent}"
    signals = [name for each in run.waits if (name := _signal(each))]
    send = [f"handoff signal {facts.job} {name} JSON" for name in dict.fromkeys(signals)]
    ask = [f"handoff why {b.id}" for b in its.calls[:1]]
    more = {
        "run": run.id,
        "orchestration": run.stage,
        "waits": list(run.waits),
        "calls": [{"job": b.id, "stage": b.stage, "stands": stands(b)} for b in its.calls],
        "workers": [worker_facts(w) for w in its.agent.workers] if its.agent else [],
    }
    do = (*start, *keep, *send, *ask, f"handoff run {facts.job}")
    return Cause(Code.RUN, state.stage, " ".join(why.split()), do, more)


def _begun(run: Run) -> str:
    if run.signal is not None:
        return f"It waits at stage {run.stage}, since {at(run.began_at)}."
    return f"It waits in its run of {run.stage}, which began at {at(run.began_at)}."


def _calls(its: RunFacts) -> str:
    if not its.calls:
        return ""
    told = "; ".join(_call(b) for b in its.calls)
    more = its.called - len(its.calls)
    return sentence(f"For its calls: {told}" + (f"; and {more:,} more" if more > 0 else "")) + " "


def _call(branch: Branch) -> str:
    at_stage = f"at {branch.stage}, " if branch.status is None else ""
    return f"/{branch.number} {at_stage}{stands(branch)}"


def _others(run: Run) -> str:
    """Signals and times, as its journal says them."""
    told = [each for each in run.waits if not each.startswith("call ")]
    if not told:
        return "" if run.waits else "Its join agent has yet to move it on."
    return f"For: {'; '.join(told)}."


def _signal(text: str) -> str | None:
    return text.removeprefix("signal ").split(_UNTIL)[0] if text.startswith("signal ") else None


def _late(its: RunFacts, facts: Facts, now: datetime) -> tuple[str, tuple[str, ...]]:
    """Who keeps the time that comes next, where nobody does or it is over; and the command."""
    due = [t for each in its.run.waits if (t := _due(each)) is not None]
    if not due:
        return "", ()
    late = now - min(due)
    alive = any(lives(w, facts, now) for w in its.timers)
    told = ""
    if late > OVERDUE:
        told = f" The first of these times was {span(late.total_seconds())} ago. "
    if told or not alive:
        told = sentence(f"{told} {keepers(its.timers, facts, now)}")
    return told, () if alive else ("handoff worker timers",)


def _due(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.rpartition(_UNTIL)[2]).astimezone(UTC)
    except ValueError:
        return None
