"""Goal: README's table of `on_missing` and `timeout` holds, and what it says of redriving.

Method: forks of four parts, of which one is rejected, one held at a gate, or both, under each rule;
then a worker that does every part, and the dead letters redriven: those of branches, then of joins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from schemas.state import Status
from streams.config import Settings
from streams.outcome import OnMissing
from tests.support.commands import Command
from tests.support.forking import MENDED, Sum, Whole, flow
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"
PARTS, BAD, LOST = 4, 1, 2


class Case(NamedTuple):
    """`ends` is how the job stands when nothing moves any more: `join` waits, `join` failed, or the
    number of results, of failed and of missing branches that were joined."""

    rule: OnMissing
    fails: bool
    times_out: bool
    ends: Status | tuple[int, int, int]


CASES = (
    Case("wait", True, False, Status.WAITING),
    Case("wait", False, True, Status.FAILED),
    Case("wait", True, True, Status.FAILED),
    Case("fail", True, False, Status.FAILED),
    Case("fail", False, True, Status.FAILED),
    Case("fail", True, True, Status.FAILED),
    Case("errors", True, False, (3, 1, 0)),
    Case("errors", False, True, (3, 0, 1)),
    Case("errors", True, True, (2, 1, 1)),
)


def test_the_rules_are_those_of_the_readme(settings: Settings, tmp_path: Path) -> None:
    handoff = Command(settings, Path.cwd())
    with Rig(settings, tmp_path, flow) as rig:
        worker = rig.worker(app=APP)
        ids = rig.submit([_job(n, case) for n, case in enumerate(CASES)])
        rig.wait(lambda: [_stands(rig, i) for i in ids] == [c.ends for c in CASES], "all as said")
        joins = [r.job for r in rig.dead_letters("join")]
        assert sorted(joins) == [job_id(n) for n, c in enumerate(CASES) if c.ends is Status.FAILED]
        assert worker.stop() == 0

        rig.target.open("lost")
        rig.variables[MENDED] = "1"
        rig.worker(app=APP)
        parts = sorted(r.job for r in rig.dead_letters("part"))
        assert parts == [f"{job_id(n)}/{BAD}" for n, c in enumerate(CASES) if c.fails]
        _redrive(rig, handoff, parts)
        whole = {
            i: (PARTS, 0, 0) for i, c in zip(ids, CASES, strict=True) if c.ends is Status.WAITING
        }
        rig.wait(lambda: whole.items() <= _sums(rig).items(), "a join that waited goes on")
        rig.wait(lambda: _parts_done(rig) == PARTS * len(CASES), "all branches are done")
        _redrive(rig, handoff, joins)
        whole |= dict.fromkeys(joins, (PARTS, 0, 0))
        rig.wait(lambda: whole.items() <= _sums(rig).items(), "joins that failed go on")
        rig.wait_drained(*flow.inputs)
        told = {i: c.ends for i, c in zip(ids, CASES, strict=True) if isinstance(c.ends, tuple)}
        assert _sums(rig) == {**told, **whole}, "what was joined does not change any more"


def _job(n: int, case: Case) -> Whole:
    return Whole(
        n=n,
        parts=PARTS,
        on_missing=case.rule,
        bad=(BAD,) if case.fails else (),
        lost=(LOST,) if case.times_out else (),
        timeout_s=2 if case.times_out else None,
    )


def _sums(rig: Rig) -> dict[str, tuple[int, int, int]]:
    """Results, failed and missing branches of each job on the sink; none lies there twice."""
    records = rig.records("done")
    found = {r.job: Sum.model_validate_json(r.value or b"") for r in records}
    assert len(found) == len(records), "each job is joined once"
    return {job: (len(s.pieces), len(s.failed), len(s.missing)) for job, s in found.items()}


def _stands(rig: Rig, job: str) -> Any:
    """As `Case.ends` says it; a join that waits counts once its failed branch is told of."""
    if (joined := _sums(rig).get(job)) is not None:
        return joined
    told = any(r.job == f"{job}/{BAD}" for r in rig.dead_letters("part"))
    states = [s for s in rig.states() if s.trace_id == job]
    last = states[-1].status if states else None
    return last if last is not Status.WAITING or told else None


def _parts_done(rig: Rig) -> int:
    return len({s.trace_id for s in rig.states() if s.parent and s.status is Status.DONE})


def _redrive(rig: Rig, handoff: Command, jobs: list[str]) -> None:
    """By the command, once the projection has seen that they failed."""

    def failed() -> int:
        rows = rig.sql("SELECT trace_id FROM jobs WHERE status = 'failed'")
        return len({row["trace_id"] for row in rows} & set(jobs))

    rig.wait(lambda: failed() == len(jobs), "the projection knows what failed")
    done = handoff("dlq", "redrive", *jobs)
    assert done.returncode == 0, done.stdout + done.stderr
