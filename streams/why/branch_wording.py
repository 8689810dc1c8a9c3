"""How joins and branches are worded: where a branch stands, and what brings a join on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.state import JOIN, Status
from streams.state.forks import Branch, Join, Obstacle, waits_for_branches
from streams.why.wording import at, ended

#: Branches that one command names.
NAMED: Final = 3


def stands(branch: Branch) -> str:
    """Where a branch is and what it does there: `enrich · waiting: retry, until …`."""
    if branch.late:
        return f"{_ended(branch)}; it came at {at(branch.came_at)}, when the join was over"
    if branch.status is None:
        return "no step yet"
    if branch.status is Status.WAITING:
        return f"{branch.stage} · waiting {_waits(branch)}"
    if branch.status is Status.RUNNING:
        return f"{', '.join(branch.to) or branch.stage} · under way since {at(branch.updated_at)}"
    return _ended(branch) + _unread(branch)


def _waits(branch: Branch) -> str:
    if branch.to == (JOIN,):
        return "for branches of its own"
    if branch.in_run:
        return "in a run of its own"
    why = f", {branch.error.kind}" if branch.error else ""
    return f"until {at(branch.wakes_at)}{why}" if branch.wakes_at else f"for a person{why}"


def _unread(branch: Branch) -> str:
    """Where the join knows another end of it than its job does."""
    if branch.came is branch.status:
        return ""
    if branch.came is None:
        return f", and the {JOIN} agent has yet to read that"
    return f", and came to the join as {branch.came.value}"


def _ended(branch: Branch) -> str:
    if branch.status is not Status.FAILED:
        return f"{branch.stage} · {(branch.status or Status.RUNNING).value}".lstrip(" ·")
    error = branch.error
    why = f": {error.kind}: {ended(error.message).rstrip('.')}" if error else ""
    return f"{branch.stage} · failed{why}; dead letter since {at(branch.updated_at)}"


def commonest(found: Sequence[Obstacle], missing: int) -> str:
    """What most of the branches without a result are at, as a sentence without its end."""
    if not found:
        return ""
    most = found[0]
    how_many = "All" if most.branches == missing else f"{most.branches:,} of {missing:,}"
    return f"{how_many} {_are(most.example)}"


def _are(b: Branch) -> str:
    kind = f" ({b.error.kind})" if b.error else ""
    if b.status is None:
        return "have taken no step yet"
    if waits_for_branches(b.status, b.to):
        return "wait for branches of their own"
    if b.status is Status.RUNNING:
        return f"are queued or in work at {', '.join(b.to) or b.stage}"
    if b.status is Status.WAITING:
        return f"wait at {b.stage}{kind}"
    if b.status is Status.FAILED:
        return f"failed at {b.stage}{kind}"
    return f"are {b.status.value}, and the {JOIN} agent has yet to read that"


def state_of(join: Join) -> str:
    """`open, since …`, `joined at …`, `failed at …: why`."""
    if join.status == "open":
        return f"open since {at(join.forked_at)}"
    why = f": {join.reason}" if join.reason else ""
    return f"{join.status} at {at(join.closed_at)}{why}"


def rule_of(join: Join) -> str:
    """What the join does about a branch that fails, and until when it waits."""
    told = {
        "wait": "wait: a branch that fails is waited for until it is redriven",
        "fail": "fail: the first branch that fails fails the job",
        "errors": "errors: a branch that fails joins with its error",
    }[join.rule]
    return f"{told}; until {at(join.deadline_at)}" if join.deadline_at else told


def next_of(
    join: Join, branches: Sequence[Branch], found: Sequence[Obstacle] = ()
) -> tuple[str, ...]:
    """The commands that bring a join on, the likeliest first; none for one that is over for good.

    `branches`: some without a result; `found`: what all of them are at.
    """
    if join.status in ("joined", "cancelled"):
        return ()
    parked = _parked(join, branches, found)
    do = [f"handoff dlq redrive {b.id}" for b in parked[:NAMED]]
    if sum(o.branches for o in found if o.example.needs_redrive) > len(do) > 0:
        do.append("handoff dlq ls")
    if join.status == "failed":
        return (*do, f"handoff dlq redrive {join.parent}")
    waiting = [b for b in branches if b.came is None]
    if not parked and waiting:
        first = waiting[0]
        own = first.status is not None and waits_for_branches(first.status, first.to)
        do = [f"handoff join {first.id}" if own else f"handoff why {first.id}"]
    return tuple(do)


def advice(join: Join, branches: Sequence[Branch], found: Sequence[Obstacle] = ()) -> str:
    """What to do about a join, in a sentence or two."""
    if join.status == "joined":
        return f"Nothing is to be done: stage {join.stage} was handed the results."
    if join.status == "cancelled":
        return "Nothing is to be done: its job was cancelled, and its branches with it."
    parked = _parked(join, branches, found)
    if join.status == "failed":
        own = (
            "Redrive the dead letters of its branches, then its own"
            if parked
            else ("Redrive its dead letter")
        )
        return f"{own}: it then waits for all branches, without a deadline, and joins."
    if parked:
        return (
            "Redrive what failed: the join goes on by itself once the last branch has come, and "
            f"hands the results to {join.stage}."
        )
    if branches:
        return "It goes on by itself once they have come. See why one of them has not."
    return f"Every branch has come; the {JOIN} agent is about to hand them to {join.stage}."


def _parked(join: Join, branches: Sequence[Branch], found: Sequence[Obstacle]) -> list[Branch]:
    """Branches that only a person brings on, and that the join needs."""
    fails = join.status == "open" and join.rule == "errors"

    def is_so(b: Branch) -> bool:
        return b.needs_redrive and not (fails and b.status is Status.FAILED)

    return list(filter(is_so, branches)) or [o.example for o in found if is_so(o.example)]
