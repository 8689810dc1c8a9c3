"""What came of a record compared with what really happened. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from schemas.state import Forked, JobError, Status
from streams.replay.effects import Ended
from streams.replay.facts import Case, Step
from streams.replay.paths import MISSING, Difference, Path, differences, spell, without
from streams.runtime.forks import Split

REJECTED: Final = "rejected"
#: Says that the children were handed other things; which ones is to be found out.
DIGEST: Final[Path] = ("fork", "digest")


class Verdict(StrEnum):
    """In the order in which a report shows them."""

    SAME = "same"
    CHANGED = "changed"
    FAILED = "failed"
    NEW_EFFECT = "new effect"
    #: There was nothing to compare with.
    UNKNOWN = "unknown"
    #: Nothing ran in production either.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a run. `data` is JSON; `ended` at which effect the run was cut off."""

    status: Status = Status.FAILED
    to: tuple[str, ...] = ()
    data: bytes | None = None
    error: JobError | None = None
    ended: tuple[Ended, str] | None = None
    #: Names of effects that happened and were not asked for.
    unasked: tuple[str, ...] = ()
    #: What it forked. `to` is then the join agent.
    fork: Split | None = None
    #: Of a run, or a wait, that it began: what that waits for from the beginning, in words.
    begun: tuple[str, ...] | None = None
    #: Why the run was cut off where it read the results of a join.
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one record. `kind` is what equal differences have in common."""

    job: str
    seq: int
    stage: str
    place: str
    verdict: Verdict
    kind: str = ""
    differences: tuple[Difference, ...] = ()
    #: What today's code says of its failure, or how many children differ; not compared.
    message: str = ""
    #: A fork whose children are still to be compared one by one (`streams.replay.forks`).
    split: Split | None = None


def judge_case(case: Case, came: Came | None, ignored: Sequence[Path]) -> Judged:
    """The verdict; `came` is None for what was not run."""
    step = case.step
    if step is None or came is None:
        verdict = Verdict.SKIPPED if case.skip else Verdict.UNKNOWN
        return _judged(case, verdict, case.because)
    if came.ended is not None or came.lost:
        return _judge_ended(case, came)
    if came.fork is not None and step.forked and case.begun is None:
        return _judge_fork(case, came.fork, ignored)
    left = without([*_compare(step, came), *_compare_begun(case, came)], ignored)
    if not left:
        return _judge_same(case, came)
    failed = any(d.path == ("error", "kind") and d.now is not MISSING for d in left)
    if failed and came.error is not None:
        said = came.error.message
        return _judged(case, Verdict.FAILED, kind_of(left), tuple(left), said)
    return _judged(case, Verdict.CHANGED, kind_of(left), tuple(left))


def _judge_same(case: Case, came: Came) -> Judged:
    """There is no difference, as far as is known."""
    if came.begun is not None and case.begun is None:
        return _judged(case, Verdict.UNKNOWN, "what it began is not kept any more")
    return _judged(case, Verdict.SAME)


def _judge_ended(case: Case, came: Came) -> Judged:
    """The run was cut off at an effect, or at results that are gone."""
    if came.ended is None:
        return _judged(case, Verdict.UNKNOWN, came.lost)
    why, name = came.ended
    if why is Ended.UNKNOWN:
        return _judged(case, Verdict.UNKNOWN, f"no answer is kept of effect {name}")
    path = ("effects", name)
    if why is Ended.NEW:
        found = Difference(path, MISSING, "asked for")
        return _judged(case, Verdict.NEW_EFFECT, f"effect {name}", (found,))
    found = Difference(path, "done", "asked for with other arguments")
    return _judged(case, Verdict.CHANGED, f"effect {name}: other arguments", (found,))


def _judge_fork(case: Case, now: Split, ignored: Sequence[Path]) -> Judged:
    """It forked, and does today. Children that differ are not named yet."""
    was = case.fork
    if was is None:
        return _judged(case, Verdict.UNKNOWN, "what it forked is not kept any more")
    left = without(_compare_forks(was, now), ignored)
    if not left:
        return _judged(case, Verdict.SAME)
    judged = _judged(case, Verdict.CHANGED, kind_of(left), tuple(left))
    open_ = any(d.path == DIGEST for d in left)
    return replace(judged, split=now) if open_ else judged


def _compare_begun(case: Case, came: Came) -> Iterator[Difference]:
    """A run, a wait and a fork all leave the job waiting for the join agent; whether it went there
    at all is told by its status and where it was handed."""
    if came.fork is None and came.begun is None:
        return
    if case.fork is not None:
        yield Difference(("fork", "join"), case.fork.join, MISSING)
    if case.begun is not None and case.begun != came.begun:
        now = MISSING if came.begun is None else list(came.begun)
        yield Difference(("run", "waits"), list(case.begun), now)


def _compare_forks(was: Forked, now: Split) -> Iterator[Difference]:
    if was.join != now.join:
        yield Difference(("fork", "join"), was.join, now.join)
    if was.expected != now.expected:
        yield Difference(("fork", "expected"), was.expected, now.expected)
    digest = digest_of(now)
    if was.digest != digest:
        yield Difference(DIGEST, was.digest or MISSING, digest)


def digest_of(split: Split) -> str:
    """The hash of what its children are handed, as the state of the step has it."""
    return Forked.model_validate_json(split.state()).digest


def _judged(
    case: Case,
    verdict: Verdict,
    kind: str = "",
    found: tuple[Difference, ...] = (),
    message: str = "",
) -> Judged:
    job, seq = (case.step.job, case.step.seq) if case.step else ("", 0)
    return Judged(job, seq, case.stage, case.place, verdict, kind, found, message)


def _compare(step: Step, came: Came) -> list[Difference]:
    found: list[Difference] = []
    if step.status is not came.status:
        found.append(Difference(("status",), step.status.value, came.status.value))
    if step.to != came.to:
        found.append(Difference(("to",), list(step.to), list(came.to)))
    found += differences(_error(step.error, came.error), _error(came.error, step.error), ("error",))
    found += _compare_data(step, came)
    found += [Difference(("effects", name), "done", "not asked for") for name in came.unasked]
    return found


def _error(error: JobError | None, other: JobError | None) -> dict[str, str]:
    """Messages of exceptions may hold addresses; the reason of a `Reject` is the handler's word,
    unless it was redacted."""
    if error is None:
        return {}
    both = other is not None and error.kind == other.kind == REJECTED
    if both and error.message and other is not None and other.message:
        return {"kind": error.kind, "message": error.message}
    return {"kind": error.kind}


def _compare_data(step: Step, came: Came) -> list[Difference]:
    if step.data is None or came.data is None:
        # Of two that ended in different ways this says nothing new.
        if step.status is not came.status or (step.data is None) == (came.data is None):
            return []
        was: Any = MISSING if step.data is None else json.loads(step.data)
        now: Any = MISSING if came.data is None else json.loads(came.data)
        return [Difference(("data",), was, now)]
    if step.data.encode() == came.data:
        return []
    # The standard library's parser keeps integers of any size.
    return list(differences(json.loads(step.data), json.loads(came.data), ("data",)))


def kind_of(found: Sequence[Difference]) -> str:
    """One text for all differences of a kind: paths, and for where a job went also the values."""
    texts: dict[str, None] = {}
    for d in found:
        name = spell(d.path, any_index=True)
        if d.path[0] == "data" or (d.path[0] == "fork" and d.path[-1] != "join"):
            texts.setdefault(name)
        else:
            texts.setdefault(f"{name}: {_said(d.was)} → {_said(d.now)}")
    return ", ".join(texts)


def _said(value: Any) -> str:
    if value is MISSING or value == []:
        return "nothing"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
