"""`python -m infra.bench.retries`: jobs told to wait; how late each of them runs again.

With `--kill` one of two dispatchers is SIGKILLed while the timers leave, and started again. Times
come from job-state: `wakesAt` of the waiting step against the start of the next run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated

import orjson
import psycopg
import typer

from infra.bench.counter import Arrivals, records
from infra.bench.load import Loader
from infra.bench.own import Own, own
from infra.services import services

_GOAL_S = 2.0
_ROOM_S = 120.0


def main(
    jobs: Annotated[int, typer.Option(min=10, help="Jobs.")] = 10_000,
    after_s: Annotated[float, typer.Option("--after", min=6, help="Seconds they wait.")] = 60.0,
    dispatchers: Annotated[int, typer.Option(min=1, help="Processes that run `timers`.")] = 2,
    kill: Annotated[bool, typer.Option(help="SIGKILL one of them in the middle.")] = False,
) -> None:
    """Exit code 0 when every job ran again once, none early and none more than 2 s late."""
    directory = Path(tempfile.mkdtemp(prefix="handoff-retries-"))
    env = {"BENCH_AFTER_S": str(after_s)}
    with (
        services() as at,
        own(at, "infra.bench.waiting_flow:flow_later", directory, env) as here,
        Arrivals(at.kafka_bootstrap_servers, here.topics.into("done")) as arrivals,
        ExitStack() as running,
    ):
        stage = here.worker("classify")
        running.callback(stage.kill)
        timers = [here.worker("timers", slot=slot) for slot in range(dispatchers)]
        for each in timers:
            running.callback(each.kill)
        sent = Loader(at.kafka_bootstrap_servers, here.topics.into("classify"), linger_ms=5).burst(
            jobs
        )
        if kill:
            _wait_for(lambda: 0 < _pending(here) < 0.8 * jobs and bool(arrivals.count(0)), jobs)
            timers[0].kill()
            print(f"killed with {_pending(here):,} of {jobs:,} timers pending", flush=True)
            again = here.worker("timers")
            running.callback(again.kill)
        arrived = arrivals.wait_for(
            sent.keys(), limit_s=after_s + _ROOM_S, stall_s=_ROOM_S, check=stage.check
        )
        late = sorted(_lateness(here))
        twice = sum(1 for _ in records(here.topics.bootstrap, here.topics.into("done"))) - jobs
    if not arrived or len(late) != jobs:
        print(f"NOT ALL RAN AGAIN: {len(late):,} of {jobs:,}")
        raise typer.Exit(1)
    at_ms = {name: late[round(part * (jobs - 1))] * 1000 for name, part in _PARTS.items()}
    print(", ".join(f"{name} {ms:,.0f} ms" for name, ms in at_ms.items()), "late;", twice, "twice")
    raise typer.Exit(0 if late[0] >= 0 and late[-1] <= _GOAL_S and twice == 0 else 1)


_PARTS = {"first": 0.0, "p50": 0.5, "p99": 0.99, "last": 1.0}


def _wait_for(fact: Callable[[], bool], jobs: int) -> None:
    deadline = time.monotonic() + 600
    while not fact():
        if time.monotonic() > deadline:
            raise RuntimeError(f"The timers of {jobs} jobs did not come and go.")
        time.sleep(0.02)


def _pending(here: Own) -> int:
    with psycopg.connect(here.database_url, autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM timers").fetchone()
    return int(row[0]) if row is not None else 0


def _lateness(here: Own) -> list[float]:
    """Seconds from when each job should run again to when it did."""
    due: dict[bytes, float] = {}
    late = []
    for key, value in records(here.topics.bootstrap, here.topics.job_state):
        state = orjson.loads(value)
        if state["status"] == "waiting":
            due[key] = datetime.fromisoformat(state["wakesAt"]).timestamp()
        else:
            late.append(state["timing"]["startedUs"] / 1e6 - due[key])
    return late


if __name__ == "__main__":
    typer.run(main)
