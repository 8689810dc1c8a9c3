"""Plain Faust: topic agents on its own consumer (aiokafka), event by event, at least once.

`BENCH_FAUST_QUIET=1` silences the loggers, whose debug records are made even at `-l warn`;
`BENCH_FAUST_LINGER` (seconds) lets the producer collect larger batches; `BENCH_FAUST_CONCURRENCY`
is the number of copies of each agent. Run with the arguments `worker -l warn --without-web`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import Any

import faust

from infra.bench.peers import setting

CONCURRENCY = int(os.environ.get("BENCH_FAUST_CONCURRENCY", "1"))


def session_options() -> dict[str, Any]:
    if not setting.SESSION_MS:
        return {}
    seconds = setting.SESSION_MS / 1000
    return {"broker_session_timeout": seconds, "broker_heartbeat_interval": seconds / 4}


app = faust.App(
    f"{setting.PREFIX}faust",
    broker=f"kafka://{setting.BOOTSTRAP}",
    topic_partitions=4,
    topic_replication_factor=1,
    key_serializer="raw",
    value_serializer="raw",
    store="memory://",
    processing_guarantee="at_least_once",
    web_enabled=False,
    broker_commit_interval=0.5,
    stream_wait_empty=False,
    consumer_auto_offset_reset="earliest",
    producer_linger=float(os.environ.get("BENCH_FAUST_LINGER", "0.005")),
    producer_acks=-1,
    datadir=setting.STATE_DIR,
    **session_options(),
)


def raw_topic(name: str) -> Any:
    return app.topic(
        name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )


job_state = raw_topic(setting.JOB_STATE)


def declare(stage: str) -> None:
    """One agent: read an event, write its state and its hand-off."""
    onward = raw_topic(setting.topic(setting.HOPS[stage]))

    async def work(stream: Any) -> None:
        async for event in stream.events():
            if setting.SLEEP_S:
                await asyncio.sleep(setting.SLEEP_S)
            job = json.loads(event.value)
            job["stage"] = stage
            job["seq"] = job.get("seq", 0) + 1
            value = json.dumps(job).encode()
            await job_state.send(key=event.key, value=value)
            await onward.send(key=event.key, value=value)

    app.agent(raw_topic(setting.topic(stage)), name=stage, concurrency=CONCURRENCY)(work)


def silence() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("aiokafka", "faust", "mode", "asyncio")):
            logging.getLogger(name).setLevel(logging.WARNING)


for each in setting.HOPS:
    declare(each)
if os.environ.get("BENCH_FAUST_QUIET") == "1":
    silence()
if __name__ == "__main__":
    app.main()
