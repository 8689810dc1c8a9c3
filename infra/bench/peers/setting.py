"""What every peer is told, and the one step of work that all of them do."""

from __future__ import annotations

import os
from typing import Any, Final

import orjson

BOOTSTRAP: Final = os.environ["BENCH_BOOTSTRAP"]
PREFIX: Final = os.environ["BENCH_PREFIX"]
#: How long a stage waits for its model, in seconds; 0 for pure throughput.
SLEEP_S: Final = int(os.environ.get("BENCH_SLEEP_MS", "0")) / 1000
#: Session time-out of the consumer group in ms; 0 leaves each client's own default.
SESSION_MS: Final = int(os.environ.get("BENCH_SESSION_MS", "0"))
STATE_DIR: Final = os.environ.get("BENCH_STATE_DIR", ".")
BATCH: Final = int(os.environ.get("BENCH_BATCH", "2000"))

#: Each stage and where it hands to.
HOPS: Final = {"classify": "enrich", "enrich": "act", "act": "done"}


def topic(stage: str) -> str:
    """The hand-off topic into `stage`: spelled as handoff spells its own."""
    return f"{PREFIX}bench.{stage}"


JOB_STATE: Final = f"{PREFIX}job-state"

Job = dict[str, Any]


def step(job: Job, stage: str) -> bytes:
    """The work of a hop: set the stage, count `seq` up, serialise."""
    job["stage"] = stage
    job["seq"] = job.get("seq", 0) + 1
    return orjson.dumps(job)


def consumer_options(group: str) -> dict[str, Any]:
    """librdkafka consumer settings that all fast peers share."""
    return {
        "bootstrap.servers": BOOTSTRAP,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 20,
        "queued.max.messages.kbytes": 65536,
    }


def short_session() -> dict[str, Any]:
    """Session settings of the classic group protocol, empty unless `BENCH_SESSION_MS` is set."""
    if not SESSION_MS:
        return {}
    return {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": SESSION_MS // 4}


def producer_options(transactional_id: str) -> dict[str, Any]:
    """librdkafka producer settings that all fast peers share."""
    return {
        "bootstrap.servers": BOOTSTRAP,
        "transactional.id": transactional_id,
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
        "transaction.timeout.ms": 60_000,
        "partitioner": "murmur2_random",
    }
