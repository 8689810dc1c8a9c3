"""That a cancel holds at size: jobs in every kind of state, and workers killed in the middle of it.

    python -m tests.size.cancel_size --jobs 1000

A tenth is queued before its first stage (which is paused), the others are queued before a busy
stage, running, waiting for a retry in place or for a timer, forked, or done. Each that has begun
has done an effect. All are cancelled by one command; meanwhile both workers are killed, one after
the other. Then each is cancelled or done, nothing is half done, no effect is done twice, and the
audit is clean. Needs KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from streams.audit import audited
from tests.support.audits import project
from tests.support.cancelling import APP, CONCURRENCY, Errand, flow
from tests.support.commands import Command
from tests.support.installation import rigged
from tests.support.judge import steps_by_job
from tests.support.rig import Rig, job_id
from tests.support.worker import environment

#: What comes to rest without holding a slot of `work`, in these shares; then what holds them all.
QUIET = ("timer", "timer", "place", "place", "done", "pass", ("timer", "done"), ("place", "timer"))
#: How many jobs are cancelled when a worker is killed, as shares of all.
_KILLS = (0.15, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, rigged(flow) as rig:
        measure(rig, Command(rig.settings, Path(folder)), arguments.jobs)


def measure(rig: Rig, command: Command, jobs: int) -> None:
    workers = [rig.worker(app=APP, slot=slot, cancel_grace_s=2) for slot in (0, 1)]
    busy, unheard = jobs * 4 // 10, jobs // 10
    quiet = [_quiet(n) for n in range(jobs - busy - unheard)]
    ids = submit(rig, quiet, 0)
    rig.wait(lambda: at_rest(rig, quiet), "the quiet ones are at rest")
    ids += submit(rig, [Errand(n=n, rest="gate", effect=True) for n in range(busy)], len(ids))
    # Two thirds: the keys are not spread evenly over the workers.
    slots = min(2 * CONCURRENCY, busy * 2 // 3)
    rig.wait(lambda: rig.target.waiting("work") >= slots, "the slots are taken")
    assert command("stage", "pause", "take").returncode == 0
    ids += submit(rig, [Errand(n=n, effect=True) for n in range(unheard)], len(ids))
    project(rig)
    print("before:", told(rig, ids))

    began = time.monotonic()
    asked = subprocess.Popen(
        [sys.executable, "-m", "streams.cli", "jobs", "cancel", *ids, "-o", "json"],
        env=environment(rig.settings),
        stdout=subprocess.PIPE,
    )
    for n, share in enumerate(_KILLS):
        rig.wait(lambda share=share: cancelled(rig) >= share * jobs, "jobs are cancelled")
        workers[n].kill()
        print(f"SIGKILL of slot {n} with {cancelled(rig):,} cancelled")
        workers[n] = rig.worker(app=APP, slot=n, cancel_grace_s=2)
    answers = json.loads(asked.communicate()[0])
    print("the command:", dict(Counter(answer["did"] for answer in answers)))
    rig.wait(lambda: not unfinished(rig, ids), "all are over")
    print(f"all over after {time.monotonic() - began:.1f} s")
    assert command("stage", "resume", "take").returncode == 0
    rig.wait_drained()
    project(rig)
    for worker in workers:
        # One that is still being imported does not know the signal yet.
        rig.wait(lambda worker=worker: "worker_ready" in worker.log, "the worker has started")
        assert worker.stop() == 0, worker.log[-4000:]
    print("after:", told(rig, ids))
    check(rig, ids)


def _quiet(n: int) -> Errand:
    what = QUIET[n % len(QUIET)]
    where = {"rest": what} if isinstance(what, str) else {"parts": what}
    return Errand.model_validate({"n": n, "effect": True, **where})


def submit(rig: Rig, errands: Sequence[Errand], first: int) -> list[str]:
    ids = [job_id(first + n) for n in range(len(errands))]
    rig.submit(errands, ids)  # type: ignore[arg-type]
    return ids


def at_rest(rig: Rig, errands: Sequence[Errand]) -> bool:
    """Each has done its effects; waits are committed, and what goes on is done."""
    effects = sum(len(e.parts) or 1 for e in errands)
    over = sum(not e.parts and e.rest in ("pass", "done") for e in errands)
    done = "SELECT count(*) AS n FROM jobs WHERE status = 'done' AND parent IS NULL"
    return len(rig.target.effects) == effects and rig.sql(done)[0]["n"] == over


def cancelled(rig: Rig) -> int:
    query = "SELECT count(*) AS n FROM jobs WHERE status = 'cancelled' AND parent IS NULL"
    return int(rig.sql(query)[0]["n"])


def unfinished(rig: Rig, ids: Sequence[str]) -> int:
    query = "SELECT count(*) AS n FROM jobs WHERE trace_id = ANY(%s) AND status = ANY(%s)"
    over = rig.sql(query, list(ids), ["done", "failed", "cancelled"])[0]["n"]
    return len(ids) - int(over)


def told(rig: Rig, ids: Sequence[str]) -> str:
    rows = rig.sql(
        "SELECT status || CASE WHEN status = 'running' THEN ' → ' || handed_to[1]"
        "  WHEN wakes_at IS NOT NULL THEN ' (timer)' WHEN status = 'waiting' THEN ' (fork)'"
        "  ELSE '' END AS what, count(*) AS n FROM jobs WHERE parent IS NULL GROUP BY 1 ORDER BY 1"
    )
    known = sum(row["n"] for row in rows)
    rest = [f"{len(ids) - known} not heard of yet"] if known < len(ids) else []
    return ", ".join([f"{row['n']} {row['what']}" for row in rows] + rest)


def check(rig: Rig, ids: Sequence[str]) -> None:
    steps = steps_by_job(rig.states())
    for job, states in steps.items():
        assert [s.seq for s in states] == list(range(1, len(states) + 1)), job
        assert [s.status.terminal for s in states] == [False] * (len(states) - 1) + [True], job
        assert states[-1].status.value in ("done", "cancelled"), job
    assert set(ids) <= set(steps)
    calls = Counter(key for key, _ in rig.target.calls)
    assert max(calls.values()) == 1, calls.most_common(3)
    with audited(rig.settings) as verdict:
        print(verdict.line())
        assert verdict.clean, list(verdict.findings(limit=10))


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    main()
