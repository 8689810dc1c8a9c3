"""`python -m infra.bench.poison`: one record that fails for ever, first of its partition.

The others' rate with it against the rate without it, in pairs, and the worker's memory over the
run. Case 22 of the public ones: the map of finished offsets overflows, or everything waits.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import Producer

from infra.bench.counter import Arrivals
from infra.bench.figures import median
from infra.bench.load import make_job
from infra.bench.own import own
from infra.bench.processes import PeerGroup
from infra.bench.waiting_flow import POISON
from infra.services import Endpoints, services

_GOAL = 0.8
_LIMIT_S = 300.0
_MIB = 1024


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: jobs/s from the first arrival to the last, and resident MiB as it went on."""

    rate: float
    #: At a quarter, half, three quarters and all of the jobs.
    resident_mb: tuple[float, ...]
    complete: bool


def main(
    jobs: Annotated[int, typer.Option(min=1_000, help="Jobs of a run.")] = 100_000,
    pairs: Annotated[int, typer.Option(min=1, help="Runs with and without, in turn.")] = 3,
    waiting: Annotated[bool, typer.Option(help="Handlers wait 5 ms, many at once.")] = False,
) -> None:
    """Exit code 0 when the median of the pairs is at least 0.8 and every other job was done."""
    directory = Path(tempfile.mkdtemp(prefix="handoff-poison-"))
    app = f"infra.bench.waiting_flow:{'flow_io' if waiting else 'flow'}"
    ratios, complete = [], True
    with services() as at:
        for n in range(pairs):
            # Who comes first changes, since a warm broker is quicker.
            order = (True, False) if n % 2 else (False, True)
            turns = {with_it: _run(at, app, directory, jobs, with_it) for with_it in order}
            for with_it, turn in sorted(turns.items()):
                _say(n, turn, with_it)
                complete = complete and turn.complete
            ratios.append(turns[True].rate / turns[False].rate)
    ratio = median(ratios) or 0.0
    each = " ".join(f"{r:.2f}" for r in ratios)
    print(f"with / without: {each}, median {ratio:.2f}, goal {_GOAL}")
    raise typer.Exit(0 if complete and ratio >= _GOAL else 1)


def _say(n: int, turn: Turn, with_it: bool) -> None:
    memory = " ".join(f"{mb:.0f}" for mb in turn.resident_mb)
    print(
        f"pair {n + 1}, {'with' if with_it else 'without'} poison: {turn.rate:,.0f} jobs/s, "
        f"resident MiB {memory}, {'all others done' if turn.complete else 'NOT ALL DONE'}",
        flush=True,
    )


def _run(at: Endpoints, app: str, directory: Path, jobs: int, with_it: bool) -> Turn:
    with own(at, app, directory) as here:
        done = here.topics.into("done")
        keys = _load(here.topics.bootstrap, here.topics.into("classify"), jobs, with_it)
        with Arrivals(at.kafka_bootstrap_servers, done) as arrivals:
            worker = here.worker("classify")
            try:
                return _watch(arrivals, worker, keys)
            finally:
                worker.kill()


def _load(bootstrap: str, topic: str, jobs: int, with_it: bool) -> set[bytes]:
    """All into one partition, the failing one first; the keys of the others."""
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000})
    keys = set()
    for number in range(jobs):
        key, value, _ = make_job(number)
        if number == 0 and with_it:
            value = value.replace(b"x" * 200, POISON.encode())
        else:
            keys.add(key)
        producer.produce(topic, value, key, partition=0)
        if number % 1_000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise RuntimeError(f"The broker did not take all jobs of {topic}.")
    return keys


def _watch(arrivals: Arrivals, worker: PeerGroup, keys: set[bytes]) -> Turn:
    marks = [len(keys) * quarter // 4 for quarter in (1, 2, 3, 4)]
    resident: list[float] = []
    first: float | None = None
    deadline = time.monotonic() + _LIMIT_S
    while len(resident) < len(marks) and time.monotonic() < deadline:
        worker.check()
        if arrivals.read() and first is None:
            first = time.time()
            begun = len(arrivals.first_at)
        while len(resident) < len(marks) and len(arrivals.first_at) >= marks[len(resident)]:
            resident.append(_resident_mb(worker.pgid))
    took_s = (arrivals.last_at or 0.0) - (first or 0.0)
    rate = (len(arrivals.first_at) - begun) / took_s if took_s > 0 else 0.0
    return Turn(rate, tuple(resident), arrivals.first_at.keys() == keys)


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [line] = [x for x in status.splitlines() if x.startswith("VmRSS:")]
    return int(line.split()[1]) / _MIB


if __name__ == "__main__":
    typer.run(main)
