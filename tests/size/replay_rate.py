"""How fast `handoff replay` is, against the same stage live.

    python -m tests.size.replay_rate --jobs 20000 --slow 640

Two stages: `light` does next to nothing, so the machinery is what costs; `slow` awaits a second in
an effect, which a replay answers from the ledger. Each runs live in a worker of its own from a full
topic, then is replayed by the command in one process. Prints both rates and their ratio; a quiet
machine is needed for figures that mean something. Needs KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from streams import Context, Flow, stage
from streams.config import Settings, load_settings
from streams.kafka import admin_client, delete_topics, topic_names
from streams.postgres import create_database, drop_database, with_database
from streams.state.migrate import migrate
from tests.support.rig import Rig, job_id
from tests.support.worker import environment

APP = "tests.size.replay_rate:flow"
FLOW = "rate"


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
    arguments = parser.parse_args()
    name = f"rate_{uuid4().hex[:8]}"
    settings = with_database(load_settings(prefix=f"{name}."), name)
    create_database(settings)
    try:
        migrate(settings)
        with tempfile.TemporaryDirectory() as folder, Rig(settings, Path(folder), flow) as rig:
            compare(rig, "light", range(arguments.jobs))
            first = arguments.jobs
            compare(rig, "slow", range(first, first + arguments.slow))
    finally:
        drop_database(settings)
        with admin_client(settings) as admin:
            ours = [t for t in topic_names(settings, admin) if t.startswith(settings.prefix)]
            delete_topics(settings, admin, ours)


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
