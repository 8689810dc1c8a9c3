"""The life of an effect, pure: what a claim finds, and what a failed call leaves behind.

(no row) --claim--> claimed --call, settle--> done
                       |--known not to have happened--> released --claim--> claimed
                       |--unknown, idempotent--> claimed, its lease given up --claim--> claimed
                       |--unknown, the target can be asked--> claimed --happened--> done
                       |                                         `--did not--> released
                       `--unknown otherwise--> in_doubt --late settlement, resolve--> done
                                                  `--resolve--> released
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from streams.errors import BadRecord, EffectNotDone


class Status(StrEnum):
    """Column `effects.status`."""

    #: An attempt is calling, or died while it did.
    CLAIMED = "claimed"
    #: Known not to have happened.
    RELEASED = "released"
    #: Happened; the result is stored and never changes.
    DONE = "done"
    #: Happened or not: nobody here can tell.
    IN_DOUBT = "in_doubt"


@dataclass(frozen=True, slots=True)
class Owner:
    """One process: its slot, and a random id that no other start of it has."""

    slot: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A claim that somebody wants."""

    key: str
    name: str
    trace_id: str
    flow: str
    stage: str
    fingerprint: str
    idempotent: bool
    #: The target can be asked whether the effect happened.
    reconcilable: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """An effect as Postgres has it; `expired` is by its clock, `result` is JSON."""

    key: str
    status: Status
    fingerprint: str
    idempotent: bool
    slot: int
    incarnation: str
    fence: int
    calls: int
    expired: bool
    result: str | None = None
    note: str | None = None


class Step(Enum):
    """What a claim does with the row that it found."""

    #: Released: claim as if there had been no row.
    CLAIM_AFRESH = "claim afresh"
    #: Claim after an attempt of unknown outcome; the target sees the same key again.
    TAKE_OVER = "take over"
    #: Claim in order to ask the target about an attempt of unknown outcome, and call only if it
    #: says that nothing happened.
    RECONCILE = "reconcile"
    #: The stored result is the answer.
    ANSWER = "answer"
    #: A live attempt of another worker: ask again later.
    WAIT = "wait"
    #: A dead attempt, not repeatable: mark the row in doubt, park the job.
    DOUBT = "doubt"
    #: In doubt already: park the job.
    PARK = "park"
    #: Other arguments under the same key: note it on the row, park the job.
    MISMATCH = "mismatch"


def plan_claim(row: Row, ask: Ask, me: Owner) -> Step:
    """Decide what a claim does. The caller has no other attempt at this key in its own process."""
    if row.status is Status.RELEASED:
        return Step.CLAIM_AFRESH
    if row.fingerprint != ask.fingerprint:
        return Step.MISMATCH
    if row.status is Status.DONE:
        return Step.ANSWER
    if row.status is Status.CLAIMED and is_alive(row, me):
        return Step.WAIT
    return _plan_unknown(row, ask)


def _plan_unknown(row: Row, ask: Ask) -> Step:
    # Both: an earlier release of the stage may have called a target that honours no key.
    if row.idempotent and ask.idempotent:
        return Step.TAKE_OVER
    if ask.reconcilable:
        return Step.RECONCILE
    return Step.PARK if row.status is Status.IN_DOUBT else Step.DOUBT


def is_alive(row: Row, me: Owner) -> bool:
    """Whether the attempt that holds the claim may still be running.

    A slot has one process, so a claim of my slot by another incarnation is my dead predecessor's,
    and one by mine was given up here without a word. Neither has a lease worth waiting for.
    """
    return row.slot != me.slot and not row.expired


def past_of(row: Row) -> str:
    """What is known of the last attempt, for people: a note, or who it was."""
    return row.note or f"attempt {row.fence} of slot {row.slot} ended without an answer"


@dataclass(frozen=True, slots=True)
class Ending:
    """What an attempt says about its claim.

    `status` claimed means: unknown, lease given up. `fence` None names whatever claim this process
    holds: it asked for one and the answer was lost, so it never called. `called`: the result is of
    this attempt's own call, so another attempt that is done as well did it a second time.
    """

    key: str
    fingerprint: str
    status: Status
    fence: int | None
    result: str | None = None
    note: str | None = None
    called: bool = False


def plan_failure(
    error: BaseException, *, idempotent: bool, first: bool, reconcilable: bool = False
) -> Status:
    """What is known of an effect whose function raised (or was cancelled in the middle).

    `first`: no earlier attempt at this key is of unknown outcome. Otherwise "not done" speaks only
    for the last call, and the key stays bound to its arguments. Claimed: unknown, and a way on is
    left, to repeat it or to ask the target.
    """
    if first and isinstance(error, BadRecord | EffectNotDone):
        return Status.RELEASED
    return Status.CLAIMED if idempotent or reconcilable else Status.IN_DOUBT
