"""How answers are worded: times, lengths of time, what became of a worker. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from streams.why.facts import Facts, WorkerRow


def lives(w: WorkerRow, facts: Facts, now: datetime) -> bool:
    """Whether it was heard of lately; it may have died since."""
    return w.ended_at is None and (now - w.seen_at).total_seconds() < facts.lost_s


def life(w: WorkerRow, facts: Facts, now: datetime) -> str:
    """How the last process of a slot ended, or that it seems to live."""
    who = f"slot {w.slot} (pid {w.pid} on {w.host})"
    if w.clean:
        return f"{who} was stopped at {at(w.ended_at)}"
    if w.ended_at is not None:
        return f"{who} died and was last heard of at {at(w.seen_at)}"
    if lives(w, facts, now):
        return f"{who} was heard of at {at(w.seen_at)}"
    return f"{who} was last heard of at {at(w.seen_at)} and is lost"


def silence(w: WorkerRow, facts: Facts, now: datetime) -> str:
    if lives(w, facts, now):
        return ""
    return (
        f" That is what it said at {at(w.seen_at)}; since then it has not been heard of, though it "
        "is a member of its group: it hangs, or cannot reach Postgres."
    )


def worker_facts(w: WorkerRow) -> dict[str, Any]:
    return {
        "slot": w.slot,
        "incarnation": w.incarnation,
        "pid": w.pid,
        "host": w.host,
        "seen_at": w.seen_at,
        "ended_at": w.ended_at,
        "clean": w.clean,
        "paused": w.paused,
    }


def at(moment: datetime | None) -> str:
    if moment is None:
        return "an unknown time"
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float) -> str:
    """A length of time for people: 12 s, 3 min, 2.5 h, 4 d."""
    for limit, scale, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"


def sentence(text: str) -> str:
    return text.rstrip(".") + "."


def capital(text: str) -> str:
    """With a capital letter in front."""
    return text[:1].upper() + text[1:]


def ended(text: str) -> str:
    """As a sentence, if it is anything; only its first line."""
    lines = text.strip().splitlines()
    return sentence(lines[0]) if lines and lines[0] else ""
