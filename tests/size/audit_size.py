"""How long and how much memory `handoff audit` takes for so many finished jobs.

    python -m tests.size.audit_size --jobs 1000000

Writes the facts of three-stage jobs straight into topics and tables of its own (seven records, one
effect and four rows a job), runs the command in a process of its own, prints seconds and peak
memory, and removes what it made. Needs KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL. Nothing is
simulated for the audit: it reads the same records as after a real run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import orjson
import psycopg
from confluent_kafka import Producer

from schemas import headers as h
from schemas.ids import traceparent_of_key
from streams import topics
from streams.config import Settings, load_settings
from streams.kafka import admin_client, delete_topics, describe_topics, seed_offsets
from streams.offsets import encode_map
from streams.postgres import create_database, drop_database, with_database
from streams.state.migrate import migrate
from tests.support.flows import flow
from tests.support.worker import environment

PARTITIONS = 4
STAGES = ("take", "work", "finish")
TEXT = "Dear all, please find attached what you asked for. " * 6


def main() -> None:
    with written(__doc__) as settings:
        measure(settings, "audit")


@contextmanager
def written(doc: str) -> Iterator[Settings]:
    """Settings of topics and a database with the facts of as many jobs as the command line says."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--keep", action="store_true", help="leave topics and database behind")
    arguments = parser.parse_args()
    name = f"size_{uuid4().hex[:8]}"
    settings = load_settings(prefix=f"{name}.", partitions=PARTITIONS)
    settings = with_database(settings, name)
    create_database(settings)
    try:
        migrate(settings)
        topics.apply(flow, settings)
        began = time.monotonic()
        at = datetime.now(UTC).replace(microsecond=0)
        write_records(settings, arguments.jobs, at)
        write_rows(settings, arguments.jobs, at)
        print(f"{arguments.jobs:,} jobs written in {time.monotonic() - began:.0f} s", flush=True)
        yield settings
    finally:
        if not arguments.keep:
            drop_database(settings)
            with admin_client(settings) as admin:
                delete_topics(settings, admin, [s.name for s in topics.specs(flow, settings)])


def measure(settings: Settings, *command: str) -> None:
    """Run `handoff command` in a process of its own; its output, seconds and peak memory."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "streams.cli", *command]
    pid = os.posix_spawn(sys.executable, argv, environment(settings))
    _, status, used = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    code, peak_mb = os.waitstatus_to_exitcode(status), used.ru_maxrss / 1024
    print(f"exit code {code}, {seconds:.0f} s, peak {peak_mb:.0f} MB", flush=True)


def job_id(n: int) -> str:
    # Scattered, as ids are: equal in Postgres, md5(n::text).
    return hashlib.md5(str(n).encode()).hexdigest()


def payload(n: int) -> bytes:
    return b'{"n": %d, "path": [], "text": "%b"}' % (n, TEXT.encode())


def write_records(settings: Settings, jobs: int, at: datetime) -> None:
    """Job n lies in partition n % P, at offset n // P of each stage's topic."""
    producer = Producer(
        {
            "bootstrap.servers": settings.kafka_bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
            "error_cb": lambda _: None,
        }
    )
    ms = int(at.timestamp() * 1000)
    with admin_client(settings) as admin:
        names = [settings.names.stage_topic(flow.name, s) for s in (*STAGES, "done")]
        facts = describe_topics(settings, admin, names)
        ids = {s: str(facts[settings.names.stage_topic(flow.name, s)].topic_id) for s in STAGES}
        for n in range(jobs):
            write_job(producer, settings, n, ms, at, ids)
            if n % 1_000 == 0:
                while len(producer) > 400_000:
                    producer.poll(0.05)
                producer.poll(0)
        assert producer.flush(600) == 0
        for name in names[:3]:
            heads = {p: len(range(p, jobs, PARTITIONS)) for p in range(PARTITIONS)}
            offsets = {
                p: (head, encode_map(facts[name].topic_id, head, [])) for p, head in heads.items()
            }
            seed_offsets(settings, admin, name, facts[name], offsets)


def write_job(
    producer: Producer, settings: Settings, n: int, ms: int, at: datetime, ids: dict[str, str]
) -> None:
    key, value = job_id(n).encode(), payload(n)
    partition, place = n % PARTITIONS, n // PARTITIONS
    updated = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for step, target in enumerate((*STAGES, "done")):
        headers = [(h.FLOW, b"run"), (h.BORN, b"%d" % (ms * 1000))]
        if step:
            headers = [
                (h.HOP, b"%d;%d;run" % (step, ms * 1000)),
                (h.TRACEPARENT, traceparent_of_key(key, step)),
                (h.CE_ID, b"%b:%d" % (key, step)),
                (h.CE_TYPE, b"run.job"),
                (h.CE_TIME, updated.encode()),
                (h.CE_SPECVERSION, b"1.0"),
                (h.CE_SOURCE, b"handoff/run/take"),
            ]
        topic = settings.names.stage_topic(flow.name, target)
        producer.produce(topic, value, key, partition, timestamp=ms, headers=headers)
    for step, stage in enumerate(STAGES, 1):
        to = (*STAGES, "done")[step]
        state = {
            "traceId": key.decode(),
            "status": "done" if step == len(STAGES) else "running",
            "seq": step,
            "data": orjson.Fragment(value),
            "attempts": 1,
            "updatedAt": updated,
            "to": [to],
            "timing": dict.fromkeys(
                ("bornUs", "producedUs", "polledUs", "startedUs", "finishedUs"), ms * 1000
            ),
            "consumed": {
                "topic": settings.names.stage_topic(flow.name, stage),
                "topicId": ids[stage],
                "partition": partition,
                "offset": place,
            },
            "flow": "run",
            "stage": stage,
            "worker": "0.abcdef",
            "v": 1,
        }
        producer.produce(
            settings.names.job_state_topic, orjson.dumps(state), key, partition, timestamp=ms
        )


def write_rows(settings: Settings, jobs: int, at: datetime) -> None:
    with admin_client(settings) as admin:
        stages = [settings.names.stage_topic(flow.name, s) for s in STAGES]
        facts = describe_topics(settings, admin, [*stages, settings.names.job_state_topic])
    values = {
        "state": facts[settings.names.job_state_topic].topic_id,
        "p": PARTITIONS,
        "stages": list(STAGES),
        "to": [*STAGES[1:], "done"],
        "ids": [facts[s].topic_id for s in stages],
        "text": TEXT,
        "us": int(at.timestamp()) * 1_000_000,
        "at": at,
        "jobs": jobs,
    }
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        rows = Path(__file__).with_name("rows.sql").read_bytes()
        for statement in rows.strip().split(b";\n"):
            conn.execute(statement.rstrip(b";"), values)
        conn.execute("ANALYZE")


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    main()
