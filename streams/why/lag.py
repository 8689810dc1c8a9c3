"""Is a consumer group behind, and does it move? One verdict per partition, from two looks. Pure.

What is behind are *records*: those past the committed position that the offset map does not call
finished. Markers of transactions, and records of aborted ones, are none, so that a group that has
done everything is 0 behind although its position lies before the end of the topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from streams.why.facts import WorkerRow
from streams.why.wording import at, ended, span

#: Clocks of writers and of Postgres may differ by so much.
_CLOCKS_S = 1.0


class Pace(StrEnum):
    #: Behind, and something is done about it.
    MOVING = "moving"
    #: Behind, and nothing is.
    STUCK = "stuck"
    #: Nothing to do.
    IDLE = "idle"


class Reason(StrEnum):
    """What `-o json` calls the reason of a partition that is stuck."""

    #: The group was never given a position: its workers would refuse to start.
    NO_POSITION = "no_position"
    NO_WORKER = "no_worker"
    #: Its owner was not heard of for longer than `worker_lost_s`.
    LOST = "lost"
    PAUSED = "paused"
    #: A handler runs past its time limit: it was cancelled and does not listen.
    OVER_LIMIT = "over_limit"
    #: Its owner lives and tells of no work, and nothing is finished.
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Seen:
    """One partition of a group, as two looks have found it."""

    group: str
    #: The stage, or `projector`, `timers`, `tracer`.
    agent: str
    #: Empty for an agent that serves all flows.
    flow: str
    topic: str
    partition: int
    #: Position of the group: the next offset that is not known to be done; None: it has none.
    head: int | None
    #: End of the partition for readers of committed records.
    end: int
    #: Records behind; if not `exact` the farther ones were counted by their offsets.
    records: int
    exact: bool
    #: When the oldest record behind was written, by the clock of its writer.
    oldest_at: datetime | None
    #: Offsets that the group has finished between the looks, `apart_s` seconds apart.
    moved: int
    apart_s: float
    #: False while partitions are being handed out.
    settled: bool
    #: Slot of the member that owns the partition; None: nobody does; -1: it is no worker of ours.
    slot: int | None
    #: What that slot says of itself.
    owner: WorkerRow | None
    #: Of a stage that a person has paused: by whom, since when, why.
    ordered: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """A partition and its verdict; `seconds` is the age of the oldest record behind. `why` says
    more in a sentence, if there is more to say."""

    seen: Seen
    seconds: float
    pace: Pace
    reason: Reason | None = None
    why: str = ""

    @property
    def per_s(self) -> float:
        """Offsets that the group finishes per second."""
        return self.seen.moved / self.seen.apart_s


def judge(seen: Seen, now: datetime, lost_s: float) -> Lag:
    """The verdict at `now`, by Postgres' clock. A worker counts as lost after `lost_s` seconds
    without a sign of life."""
    if not seen.records:
        return Lag(seen, 0.0, Pace.IDLE)
    seconds = 0.0
    if seen.oldest_at is not None:
        seconds = max(0.0, (now - seen.oldest_at).total_seconds())
    if seen.moved:
        return Lag(seen, seconds, Pace.MOVING)
    reason, why = _standing(seen, now, lost_s)
    return Lag(seen, seconds, Pace.MOVING if reason is None else Pace.STUCK, reason, why)


def _standing(seen: Seen, now: datetime, lost_s: float) -> tuple[Reason | None, str]:
    """Why nothing was finished between the looks; no reason: it is at work all the same."""
    if seen.ordered:
        resume = f"handoff stage resume {seen.flow}.{seen.agent}"
        return Reason.PAUSED, f"Paused {seen.ordered.rstrip('.')}. Let it go on: {resume}"
    if seen.head is None:
        return Reason.NO_POSITION, "It has no position: handoff topics apply."
    if seen.slot is None and not seen.settled:
        return None, "The group hands out its partitions."
    if seen.slot is None:
        return Reason.NO_WORKER, f"No worker runs it: handoff worker {seen.agent}."
    return _silent(seen) if seen.owner is None else _owned(seen, seen.owner, now, lost_s)


def _owned(seen: Seen, owner: WorkerRow, now: datetime, lost_s: float) -> tuple[Reason | None, str]:
    if owner.clean:
        return Reason.NO_WORKER, f"Its worker was stopped at {at(owner.ended_at)}."
    if (now - owner.seen_at).total_seconds() >= lost_s:
        return Reason.LOST, f"Its worker was last heard of at {at(owner.seen_at)}."
    if owner.paused is not None:
        return Reason.PAUSED, f"Paused since {at(owner.paused_since)}: {ended(owner.paused)}"
    return _at_work(seen, owner)


def _at_work(seen: Seen, owner: WorkerRow) -> tuple[Reason | None, str]:
    """By the account of an owner that lives: see `streams.runtime.account`."""
    account = owner.account or {}
    longest_s = max((run[2] for run in account.get("runs", ())), default=0.0)
    limit_s = account.get("limit_s") or 0.0
    if longest_s > limit_s > 0:
        return (
            Reason.OVER_LIMIT,
            f"A run takes {span(longest_s)}, and its time limit is {span(limit_s)}; it does not "
            f"listen to its cancellation. End the worker: others run its records again.",
        )
    if account.get("in_work"):
        return None, f"{account['in_work']:,} in work, the longest for {span(longest_s)}."
    if account.get("waiting"):
        return None, f"{account['waiting']:,} wait for their next attempt."
    if account.get("limited"):
        return None, f"{account['limited']:,} wait for a limit of their stage."
    told_s = (owner.seen_at - seen.oldest_at).total_seconds() if seen.oldest_at is not None else 0
    if seen.oldest_at is not None and told_s < _CLOCKS_S:
        return None, "It came after the worker's last sign of life."
    return _silent(seen)


def _silent(seen: Seen) -> tuple[Reason, str]:
    return Reason.SILENT, f"It finished nothing within {span(seen.apart_s)}, and tells of no work."
