"""What runs cost that wait for a signal, and that all of them go on.

    python -m tests.size.run_size --runs 10000

So many runs begin and wait; the worker's memory is held against that of the same worker before the
first of them. Then all are signalled at once. One worker with all agents, four partitions; rates
are by the history, from the first record's time to the last step that was committed. Needs
KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL, and for figures that mean something a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from pathlib import Path

from schemas.state import Status
from streams.client import Client
from tests.support.holding import Hold, flow
from tests.support.installation import rigged
from tests.support.rig import Rig, job_id
from tests.support.worker import Worker

APP = "tests.support.holding:flow"
MAX_GROWTH_MB = 50
_WARM = 20
_SETTLE_S = 3.0
#: `streams.runtime.memory` clears up at least so often; it then has clearly less.
_CLEARED_S = 65.0
_LESS = 0.98
_LOOK_EVERY_S = 0.5
_PATIENCE_S = 600.0
#: Signals that are under way to Kafka at once.
_AT_ONCE = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    arguments = parser.parse_args()
    measure(arguments.runs)


def measure(runs: int) -> None:
    with rigged(flow) as rig:
        worker = rig.worker(app=APP)
        # One of each kind of step: what is imported and allocated once is not what runs cost.
        begin(rig, range(_WARM))
        wait(rig, "waiting", 2 * _WARM)
        signal(rig, range(_WARM))
        wait(rig, "done", _WARM)
        time.sleep(_SETTLE_S)
        idle = memory(worker)["VmRSS"]
        ours = range(_WARM, _WARM + runs)
        began_us = time.time_ns() / 1000
        begin(rig, ours)
        wait(rig, "waiting", 2 * (_WARM + runs))
        began_s = (last_us(rig) - began_us) / 1e6
        print(f"{runs:,} runs began and wait: {began_s:.1f} s, {runs / began_s:,.0f} runs/s")
        time.sleep(_SETTLE_S)
        busy, grown = memory(worker)["VmRSS"] - idle, settled(worker) - idle
        print(
            f"the worker has {grown:+.1f} MB over its idle {idle:.1f} MB once it has given back "
            f"what the burst took ({busy:+.1f} MB)"
        )
        sent_us = time.time_ns() / 1000
        signal(rig, ours)
        wait(rig, "done", _WARM + runs)
        signal_s = (last_us(rig) - sent_us) / 1e6
        peak = memory(worker)["VmHWM"] - idle
        print(
            f"signalled at once: all went on after {signal_s:.1f} s, {runs / signal_s:,.0f} runs/s "
            f"(peak {peak:+.1f} MB)"
        )
        check(rig, _WARM + runs)
        assert grown <= MAX_GROWTH_MB, f"{grown:.1f} MB"


def begin(rig: Rig, numbers: range) -> None:
    async def send() -> None:
        items = [(job_id(n), Hold(n=n).model_dump_json().encode()) for n in numbers]
        async with Client(rig.settings) as client:
            async for _ in client.submit_many(flow, items):
                pass

    asyncio.run(send())


def signal(rig: Rig, numbers: range) -> None:
    async def send() -> None:
        async with Client(rig.settings) as client:
            for start in range(0, len(numbers), _AT_ONCE):
                some = numbers[start : start + _AT_ONCE]
                sent = [client.signal(flow.name, job_id(n), "go", by=f"{n}") for n in some]
                await asyncio.gather(*sent)

    asyncio.run(send())


def memory(worker: Worker) -> dict[str, float]:
    """Of the process, MB: `VmRSS` now, `VmHWM` at most until now."""
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    sizes = (line.split() for line in lines if line.startswith(("VmRSS", "VmHWM")))
    return {name.rstrip(":"): int(kb) / 1024 for name, kb, _ in sizes}


def settled(worker: Worker) -> float:
    """Memory after the worker's next clearing up, which comes once a minute."""
    before = memory(worker)["VmRSS"]
    until = time.monotonic() + _CLEARED_S
    while (now := memory(worker)["VmRSS"]) > before * _LESS and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
    time.sleep(_SETTLE_S)
    return min(now, memory(worker)["VmRSS"])


def wait(rig: Rig, status: str, count: int) -> None:
    """Until the history has so many steps that ended so."""
    query = "SELECT count(*) AS n FROM job_history WHERE status = %s"
    deadline = time.monotonic() + _PATIENCE_S
    while (found := int(rig.sql(query, status)[0]["n"])) < count:
        assert time.monotonic() < deadline, f"{found} of {count} {status}"
        time.sleep(_LOOK_EVERY_S)


def last_us(rig: Rig) -> float:
    return float(rig.sql("SELECT max(committed_us) AS t FROM job_history")[0]["t"])


def check(rig: Rig, runs: int) -> None:
    results = [(r.job, Hold.model_validate_json(r.value or b"")) for r in rig.records("done")]
    assert {job: (found.n, found.by) for job, found in results} == {
        job_id(n): (n, f"{n}") for n in range(runs)
    }
    assert len(results) == runs, "each once"
    states = Counter((s.seq, s.stage, s.status) for s in rig.states())
    assert states == {
        (1, "hold", Status.WAITING): runs,
        (2, "join", Status.WAITING): runs,
        (3, "join", Status.DONE): runs,
    }
    print("states: " + ", ".join(f"{n:,} {stage} {s.value}" for (_, stage, s), n in states.items()))


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    main()
