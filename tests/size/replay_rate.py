"""How fast `handoff replay` is, against the same stage live.

    python -m tests.size.replay_rate --jobs 20000 --slow 640

Two stages: `light` does next to nothing, so the machinery is what costs; `slow` awaits a second in
an effect, which a replay answers from the ledger. Each runs live in a worker of its own from a full
topic, then is replayed by the command in one process. Prints both rates and their ratio.
`--mails N` does the same with N real mails and `classify`, and compares CPU seconds for each record
(what start and preparation cost, taken off), which is the rate per core. A quiet machine is needed
for figures that mean something. Needs KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import agents
from schemas import headers as h
from streams import Context, Flow, stage
from streams.config import Settings
from tests.support.installation import rigged
from tests.support.rig import Rig, job_id
from tests.support.worker import environment

APP = "tests.size.replay_rate:flow"
FLOW = "rate"
MAILS = Path(__file__).parents[2] / "infra" / "demo" / "mail.jsonl.gz"


class Item(BaseModel):
    n: int
    text: str = "Dear all, please find attached what you asked for. " * 6


async def think(n: int, *, idempotency_key: str) -> int:
    await asyncio.sleep(1)
    return n


@stage("light", emits="done")
def light(item: Item, _: Context) -> Item:
    return item


@stage("slow", emits="done", concurrency=64)
async def slow(item: Item, job: Context) -> Item:
    return Item(n=await job.effect("think", think, item.n, idempotent=True))


flow = Flow(FLOW, stages=(light, slow), sinks=("done",))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--slow", type=int, default=640)
    parser.add_argument("--mails", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.mails:
        with rigged(agents.flow) as rig:
            compare_per_core(rig, arguments.mails)
        return
    with rigged(flow) as rig:
        compare(rig, "light", range(arguments.jobs))
        first = arguments.jobs
        compare(rig, "slow", range(first, first + arguments.slow))


def compare(rig: Rig, name: str, numbers: range) -> None:
    """Live first, with all records there before the worker starts."""
    before = rig.finished()
    items: list[Any] = [(job_id(n), 1, Item(n=n)) for n in numbers]
    rig.hand_off(name, items)
    worker = rig.worker(name, app=APP)
    rig.wait_results(before + len(items))
    rig.wait_drained(name)
    worker.stop()
    projector = rig.worker("projector", app=APP)
    steps = "SELECT count(*) AS n FROM job_history WHERE stage = %s"
    rig.wait(lambda: rig.sql(steps, name)[0]["n"] == len(items), "all is projected")
    projector.stop()
    (row,) = rig.sql(
        "SELECT (max(committed_us) - min(polled_us)) / 1e6 AS s FROM job_history WHERE stage = %s",
        name,
    )
    live, replayed = len(items) / float(row["s"]), rate(rig.settings, name, len(items))
    print(f"{name}: live {live:,.0f}/s, replay {replayed:,.0f}/s, ratio {replayed / live:.2f}")


def compare_per_core(rig: Rig, mails: int) -> None:
    """`classify` on real mails: CPU seconds for each, live and replayed."""
    with gzip.open(MAILS, "rb") as lines:
        sample = [line.strip() for line in lines]
    for n in range(mails):
        hop = [(h.HOP, b"1;1700000000000000;mail")]
        rig.put("classify", job_id(n).encode(), sample[n % len(sample)], hop)
    before = cpu_of_children()
    rig.flush()
    worker = rig.worker("classify", app="agents:flow")
    rig.wait(lambda: len(rig.records("enrich")) >= mails, "all are classified")
    worker.stop()
    live = cpu_of_children() - before
    projector = rig.worker("projector", app="agents:flow")
    rig.wait(lambda: _projected(rig) == mails, "all is projected")
    projector.stop()
    started, _ = _replay(rig.settings, "agents:flow", "--trace", job_id(0))
    spent, found = _replay(rig.settings, "agents:flow", "--topic", "mail.classify")
    assert found["counts"]["same"] == mails, found["groups"]
    # A worker starts much as the command does.
    each, again = (1e6 * (s - started) / mails for s in (live, spent))
    print(f"classify: live {each:.0f} us of CPU, replayed {again:.0f} us, ratio {each / again:.2f}")


def _projected(rig: Rig) -> int:
    return int(rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"])


def _replay(settings: Settings, app: str, *chosen: str) -> tuple[float, Any]:
    """CPU seconds of the command, and its report."""
    before = cpu_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "streams.cli", "replay", "--app", app, "-o", "json", *chosen],
        env=environment(settings),
        capture_output=True,
        check=True,
        text=True,
    )
    return cpu_of_children() - before, json.loads(done.stdout)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rate(settings: Settings, name: str, records: int) -> float:
    """Records per second of the command, its start not counted."""
    command = [sys.executable, "-m", "streams.cli", "replay", "--app", APP, "-o", "json"]
    done = subprocess.run(
        [*command, "--topic", f"{FLOW}.{name}"],
        env=environment(settings),
        capture_output=True,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert found["counts"]["same"] == records, found["groups"]
    return records / float(found["seconds"])


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    main()
