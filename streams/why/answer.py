"""From facts to one answer: the first cause, in a fixed order. Pure.

The order: it is over for good; its record lies in a topic (a person has paused the stage, nobody
works there, it runs, its stage is paused, it waits in place, or for a limit); it waits for its
branches, or in a run; its record was delivered, or others are before it; it waits for a person (an
effect in doubt, a dead letter); it waits for a time; its record cannot be found; nobody knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from streams.why import branch_causes, other_causes, queue_causes, run_causes
from streams.why.cause import Cause, Code
from streams.why.facts import Facts, State
from streams.why.wording import lives, sentence

_CAUSES: Final[tuple[Callable[[Facts, datetime], Cause | None], ...]] = (
    other_causes.over,
    queue_causes.ordered,
    queue_causes.no_worker,
    queue_causes.running,
    queue_causes.paused,
    queue_causes.backoff,
    queue_causes.limited,
    branch_causes.branches,
    run_causes.waits,
    queue_causes.delivered,
    queue_causes.lag,
    other_causes.in_doubt,
    other_causes.dead_letter,
    other_causes.failed,
    other_causes.timer,
    other_causes.lost,
    other_causes.not_there,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """`why` is a sentence or three, `do` the commands to run next, the likeliest first.

    `facts` is what it rests on, JSON but for times. `projection_behind`: so many offsets the
    projection is behind where this job's states lie; `also` says what that means, if it matters.
    """

    code: Code
    job: str
    flow: str
    stage: str
    why: str
    do: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    projection_behind: int = 0
    also: str = ""


def explain(facts: Facts, now: datetime) -> Answer:
    """The answer for `facts` at `now`, by Postgres' clock. There is always one."""
    found = next(x for x in (cause(facts, now) for cause in _CAUSES) if x is not None)
    return Answer(
        code=found.code,
        job=facts.job,
        flow=facts.flow,
        stage=found.stage,
        why=found.why,
        do=found.do,
        facts={**_state_facts(facts.state), **found.facts},
        projection_behind=facts.behind,
        also=" ".join(filter(None, (_cancelled(facts), _behind(facts, now)))),
    )


def _cancelled(facts: Facts) -> str:
    """That somebody has cancelled it, which is yet to be committed."""
    order = facts.cancel
    if order is None:
        return ""
    whose = "It" if order.target == facts.job else f"Its ancestor {order.target}"
    return sentence(f"{whose} was cancelled {order.said}") + " The hop that comes to it ends it."


def _behind(facts: Facts, now: datetime) -> str:
    """What a projection that is behind means here. A little behind is usual and changes nothing:
    the job's newer states were read."""
    unprojected = facts.state is not None and not facts.state.projected
    idle = not any(lives(w, facts, now) for w in facts.projectors)
    if not facts.behind or not (unprojected or idle or not facts.behind_read):
        return ""
    said = f"Postgres is up to {facts.behind:,} records behind job-state where this job's steps lie"
    if unprojected:
        said += "; its last step was read from there, and `handoff jobs show` does not have it yet"
    if not facts.behind_read:
        said += "; they are too many to be read here, so this answer may be stale"
    if idle:
        said += ". No projector runs: handoff worker projector"
    return sentence(said)


def _state_facts(state: State | None) -> dict[str, Any]:
    if state is None:
        return {}
    return {
        "status": state.status.value,
        "step": state.seq,
        "attempts_of_step": state.attempts,
        "updated_at": state.updated_at,
    }
