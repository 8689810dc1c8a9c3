"""What forks and joins cost, and that they hold, at size.

    python -m tests.size.fork_size fan-out --children 10000 --kills 3
    python -m tests.size.fork_size joins --joins 1000 --branches 50

`fan-out`: one job forks into so many children, each of which awaits 50 ms; against as many
independent jobs through the same stage, then again with SIGKILLs of both workers in turn, each
child doing an effect. `joins`: so many forks at once, against as many jobs as they have branches.
Two workers with all agents, four partitions; both sides are timed by the history, from the first
submission to the last step that was committed. Needs
KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL, and for figures that mean something a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence

from streams.audit import audited
from streams.client import Client
from tests.support.forking import Part, Sum, Whole, flow
from tests.support.installation import rigged
from tests.support.rig import Rig, job_id
from tests.support.worker import Worker

APP = "tests.support.forking:flow"
CHILD_WAIT_MS = 50
_TIMES = "SELECT (max(committed_us) - min(born_us)) / 1e6 AS s FROM job_history"
#: Agents with a group of their own that say which partitions they have.
_AGENTS = 7
_SETTLE_S = 2.0
#: Seldom: what counts rows takes from what is measured.
_LOOK_EVERY_S = 0.5
_PATIENCE_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_subparsers(dest="what", required=True)
    fan_out = what.add_parser("fan-out")
    fan_out.add_argument("--children", type=int, default=10_000)
    fan_out.add_argument("--kills", type=int, default=3)
    joins = what.add_parser("joins")
    joins.add_argument("--joins", type=int, default=1_000)
    joins.add_argument("--branches", type=int, default=50)
    arguments = parser.parse_args()
    if arguments.what == "fan-out":
        measure_fan_out(arguments.children, arguments.kills)
    else:
        measure_joins(arguments.joins, arguments.branches)


def measure_fan_out(children: int, kills: int) -> None:
    alone = independent(children, CHILD_WAIT_MS)
    whole = Whole(n=0, parts=children, wait_ms=CHILD_WAIT_MS)
    forked = forks([whole], kills=0)
    print(
        f"{children:,} children of {CHILD_WAIT_MS} ms: {forked:.1f} s; as many independent jobs "
        f"{alone:.1f} s; ratio {forked / alone:.2f}"
    )
    killed = forks([whole.model_copy(update={"effect": True})], kills=kills)
    print(f"with {kills} SIGKILLs and an effect each: {killed:.1f} s; one join, all in order")


def measure_joins(joins: int, branches: int) -> None:
    alone = independent(joins * branches, 0)
    forked = forks([Whole(n=n, parts=branches) for n in range(joins)], kills=0)
    jobs = joins * branches
    print(
        f"{joins:,} joins of {branches} branches: {jobs / forked:,.0f} branches/s; as many "
        f"independent jobs {jobs / alone:,.0f}/s; ratio {alone / forked:.2f}"
    )


def independent(jobs: int, wait_ms: float) -> float:
    """Seconds for so many jobs through the children's stage."""
    with rigged(flow) as rig:
        ready(rig)
        items = [(job_id(n), _item(n, wait_ms)) for n in range(jobs)]
        submit(rig, items, "part")
        return seconds(rig, "part", jobs)


def _item(n: int, wait_ms: float) -> bytes:
    return Part(n=n, wait_ms=wait_ms).model_dump_json().encode()


def ready(rig: Rig) -> list[Worker]:
    """Two workers that have their partitions."""
    workers = [rig.worker(app=APP, slot=slot) for slot in (0, 1)]
    for worker in workers:
        rig.wait(lambda worker=worker: worker.log.count("assigned ") >= _AGENTS, "assigned")
    time.sleep(_SETTLE_S)
    return workers


def submit(rig: Rig, items: Sequence[tuple[str, bytes]], stage: str) -> None:
    async def send() -> None:
        async with Client(rig.settings) as client:
            async for _ in client.submit_many(flow, items, stage):
                pass

    asyncio.run(send())


def forks(wholes: list[Whole], kills: int) -> float:
    """Seconds until all are joined; fails unless each is joined once, whole, and in order."""
    with rigged(flow) as rig:
        workers = ready(rig)
        ids = rig.submit(wholes)
        branches = sum(w.parts for w in wholes)
        for n in range(kills):
            wanted = branches * (n + 1) // (kills + 1)
            rig.wait(lambda wanted=wanted: len(rig.records("join")) > wanted, "branches come")
            workers[n % 2].kill()
            print(f"SIGKILL {n + 1} after {len(rig.records('join')) - 1:,} arrivals")
            workers[n % 2] = rig.worker(app=APP, slot=n % 2)
        took = seconds(rig, "gather", len(wholes))
        print(phases(rig))
        check(rig, dict(zip(ids, wholes, strict=True)))
        return took


def check(rig: Rig, jobs: dict[str, Whole]) -> None:
    found = [(r.job, Sum.model_validate_json(r.value or b"")) for r in rig.records("done")]
    assert sorted(job for job, _ in found) == sorted(jobs), "each is joined once"
    for job, result in found:
        assert [(p.n, p.by) for p in result.pieces] == [
            (n, f"{job}/{n}") for n in range(jobs[job].parts)
        ]
    wanted = sum(w.parts for w in jobs.values() if w.effect)
    assert len(rig.target.effects) == wanted, (len(rig.target.effects), wanted)
    with audited(rig.settings) as verdict:
        print(verdict.line())
        assert verdict.clean, list(verdict.findings(limit=10))


def projected(rig: Rig, stage: str) -> int:
    query = "SELECT count(*) AS n FROM job_history WHERE stage = %s AND status <> 'waiting'"
    return int(rig.sql(query, stage)[0]["n"])


def phases(rig: Rig) -> str:
    """When each stage polled its first record and committed its last step, seconds."""
    rows = rig.sql(
        "SELECT stage, min(polled_us) AS a, max(committed_us) AS b FROM job_history"
        " GROUP BY stage ORDER BY min(polled_us)"
    )
    zero = min(row["a"] for row in rows)
    told = (f"{r['stage']} {(r['a'] - zero) / 1e6:.2f}-{(r['b'] - zero) / 1e6:.2f}" for r in rows)
    return "s: " + ", ".join(told)


def seconds(rig: Rig, stage: str, jobs: int) -> float:
    """From the first submission to the last step, once `stage` has done `jobs`."""
    deadline = time.monotonic() + _PATIENCE_S
    while projected(rig, stage) < jobs:
        assert time.monotonic() < deadline, f"{projected(rig, stage)} of {jobs} at {stage}"
        time.sleep(_LOOK_EVERY_S)
    return float(rig.sql(_TIMES)[0]["s"])


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    main()
