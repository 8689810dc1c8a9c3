"""What steps really forked, or began, and which child is handed another thing today. Reads only.

A step's state tells where its fork joins, how many children it has and a hash of what they were
handed. `job-state` is compacted, so later only the join agent's row is there, without the hash.
Where the hash differs, or is gone, the children's own first records are compared one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson
from pydantic import ValidationError

from schemas.ids import child_id
from schemas.state import Forked, JobState, Status
from streams.config import Settings
from streams.joins import BranchRow, JoinRef
from streams.kafka import admin_client
from streams.postgres import SyncConn, load_queries
from streams.replay.facts import Case, Spot, Step
from streams.replay.lookup import Consumed, consumed_of
from streams.replay.paths import Difference, Path, differences, without
from streams.replay.sources import fetch
from streams.replay.verdict import DIGEST, Judged, Verdict, kind_of
from streams.runtime.delivery import Target
from streams.runtime.forks import Child, Split

_SQL: Final = load_queries("streams.replay")
#: Children that a verdict names; of more it says how many.
_NAMED: Final = 20
#: Children whose payloads are held at once, or those of one fork.
_PAGE_CHILDREN: Final = 10_000

#: Position of a case, the step that forked, and what.
_Fork = tuple[int, Step, Forked]


class Handed(NamedTuple):
    """What one child was handed: the stage that it began at, and the payload, JSON."""

    to: str
    data: bytes


class Forks:
    """Questions about forks, to the projection and the topics. Raises `BadWorld`."""

    def __init__(self, settings: Settings, conn: SyncConn) -> None:
        self._settings, self._conn = settings, conn
        self._admin = admin_client(settings)

    def known(self, cases: Sequence[Case]) -> list[Case]:
        """`cases`, those whose step forked with what it forked, and those whose step began a run or
        a wait with what that waits for, as far as that is kept."""
        wanted = [(c.step.job, c.step.seq) for c in cases if c.step and c.step.forked]
        if not wanted:
            return list(cases)
        steps = [{"trace_id": job, "seq": seq} for job, seq in wanted]
        rows = list(self._conn.execute(_SQL["forks_at"], {"steps": _json(steps)}))
        found = {(row["trace_id"], row["seq"]): _of_row(row) for row in rows}
        begun = {(row["trace_id"], row["seq"]): _begun(row) for row in rows}
        found.update(self._of_states([self._state_at(row) for row in rows]))
        return [
            replace(c, fork=found.get(at), begun=begun.get(at))
            if c.step and (at := (c.step.job, c.step.seq))
            else c
            for c in cases
        ]

    def _state_at(self, row: Mapping[str, Any]) -> Consumed:
        """Where the state of a step lies."""
        spot = Spot(row["topic_id"], row["partition"], row["offset"])
        topic = self._settings.names.job_state_topic
        return Consumed(row["trace_id"], row["seq"], row["flow"], "", topic, spot)

    def _of_states(self, wanted: Sequence[Consumed]) -> dict[tuple[str, int], Forked]:
        records, _ = fetch(self._settings, self._admin, wanted)
        found = {}
        for record in records.values():
            try:
                state = JobState.model_validate_json(record.value_ or b"")
            except ValidationError:
                continue
            if state.fork is not None:
                found[state.trace_id, state.seq] = state.fork
        return found

    def complete(self, cases: Sequence[Case]) -> list[Case]:
        """`cases` with all that a file needs: the hash of each fork even where only the children
        tell it, and the results that joins gave."""
        return [self._complete(case) for case in self.known(cases)]

    def _complete(self, case: Case) -> Case:
        if case.step is not None and case.fork is not None and not case.fork.digest:
            (was,) = self._handed([(case.step, case.fork)])
            if len(was) == case.fork.expected:
                return replace(case, fork=_with_digest(case.fork, was))
        if case.record is not None and not case.skip:
            return replace(case, branches=self._branches(case.record.value_))
        return case

    def _branches(self, value: bytes | None) -> tuple[BranchRow, ...] | None:
        """The results of the join that `value` refers to; None where it is no such reference."""
        try:
            ref = JoinRef.model_validate_json(value or b"")
        except ValidationError:
            return None
        values = {"parent": ref.parent, "from": ref.first, "end": ref.first + ref.expected}
        return tuple(
            BranchRow(row["branch"], Status(row["status"]), bytes(row["value"]))
            for row in self._conn.execute(_SQL["branches"], values)
        )

    def named(
        self, cases: Sequence[Case], verdicts: Sequence[Judged], ignored: Sequence[Path]
    ) -> list[Judged]:
        """`verdicts`, with the children named that differ, and without what is `ignored` of
        them."""
        found = list(verdicts)
        wanted = [
            (n, c.step, c.fork)
            for n, (c, judged) in enumerate(zip(cases, verdicts, strict=True))
            if judged.split is not None and c.step is not None and c.fork is not None
        ]
        for part in _parts(wanted):
            handed = self._handed([(step, fork) for _, step, fork in part])
            for (n, _, fork), children in zip(part, handed, strict=True):
                found[n] = name_children(found[n], fork, children, ignored)
        return found

    def _handed(self, forks: Sequence[tuple[Step, Forked]]) -> list[dict[int, Handed]]:
        """What the children of each were handed, by position; of those whose first record is
        there. One pass over the topics."""
        ids = {
            child_id(step.job, fork.first + n): (k, n)
            for k, (step, fork) in enumerate(forks)
            for n in range(fork.expected)
        }
        rows = self._conn.execute(_SQL["first_steps"], {"jobs": _json(list(ids))})
        wanted = [consumed_of(row) for row in rows]
        records, _ = fetch(self._settings, self._admin, wanted)
        found: list[dict[int, Handed]] = [{} for _ in forks]
        for c in wanted:
            record = records.get(c.spot)
            if record is not None and record.value_ is not None:
                k, n = ids[c.job]
                found[k][n] = Handed(c.stage, record.value_)
        return found


def _parts(wanted: Sequence[_Fork]) -> Iterator[list[_Fork]]:
    """Forks in lists whose children fit into memory together."""
    part: list[_Fork] = []
    children = 0
    for each in wanted:
        if part and children + each[2].expected > _PAGE_CHILDREN:
            yield part
            part, children = [], 0
        part.append(each)
        children += each[2].expected
    if part:
        yield part


def name_children(
    judged: Judged, was: Forked, handed: Mapping[int, Handed], ignored: Sequence[Path]
) -> Judged:
    """The verdict on a fork whose children `handed` tells of were compared one by one. Pure."""
    now = judged.split
    assert now is not None, "there is a fork to compare with"
    judged = replace(judged, split=None)
    found = [d for d in judged.differences if d.path != DIGEST]
    both = min(was.expected, now.expected)
    differing = 0
    for n, child in enumerate(now.children[:both]):
        if n in handed and (here := without(_compare(n, handed[n], child), ignored)):
            differing += 1
            found += here if differing <= _NAMED else ()
    gone = was.expected - len(handed)
    if gone and not differing:
        if not was.digest:
            because = f"the hand-offs of {gone:,} of its {was.expected:,} children are not kept"
            return replace(judged, verdict=Verdict.UNKNOWN, kind=because, differences=())
        # It is one of those.
        found += [d for d in judged.differences if d.path == DIGEST]
    if not found:
        return replace(judged, verdict=Verdict.SAME, kind="", differences=())
    said = f"{differing:,} of {both:,} children are handed another thing." if differing else ""
    return replace(judged, kind=kind_of(found), differences=tuple(found), message=said)


def _compare(n: int, was: Handed, now: Child) -> Iterator[Difference]:
    at: Path = ("fork", "children", n)
    (to,) = orjson.loads(now.target.names)
    if to != was.to:
        yield Difference((*at, "to"), was.to, to)
    if was.data != now.data:
        # The standard library's parser keeps integers of any size.
        yield from differences(json.loads(was.data), json.loads(now.data), (*at, "data"))


def _of_row(row: Mapping[str, Any]) -> Forked | None:
    if row["stage"] is None:
        return None
    return Forked(join=row["stage"], first=row["first_branch"], expected=row["expected"])


def _begun(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    if not row["begun"]:
        return None
    return () if row["signal"] is None else (f"signal {row['signal']}",)


def _with_digest(fork: Forked, handed: Mapping[int, Handed]) -> Forked:
    children = tuple(
        Child(Target("", Status.RUNNING, orjson.dumps([handed[n].to])), b"", handed[n].data)
        for n in range(fork.expected)
    )
    return Forked.model_validate_json(Split(fork.join, fork.first, fork.expected, children).state())


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
