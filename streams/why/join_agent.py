"""Whether anybody runs the join agent of a flow. Pure."""

from __future__ import annotations

from datetime import datetime

from schemas.state import JOIN
from streams.why.facts import Facts, Queued
from streams.why.wording import ended, life, sentence


def absence(
    agent: Queued | None, facts: Facts, now: datetime, does: str
) -> tuple[str, tuple[str, ...]]:
    """Why nobody would take what comes for a job, and the command to run; empty if somebody would.
    `does` says what the agent is for: "which moves runs on"."""
    if agent is None:
        return "", ()
    row = agent.owner_row
    if row is not None and row.paused is not None:
        return f" The {JOIN} agent is paused: {ended(row.paused)}", ("handoff doctor",)
    if agent.owner is not None and agent.owner_ended is None:
        return "", ()
    past = "; ".join(life(w, facts, now) for w in agent.workers)
    told = f" No worker runs the {JOIN} agent, {does}. {past}"
    slot = min((w.slot for w in agent.workers), default=0)
    return sentence(told.rstrip()), (f"handoff worker {JOIN} --slot {slot}",)
