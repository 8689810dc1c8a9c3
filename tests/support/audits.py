"""Runs for the audit to judge, accidents and forgeries for it to find."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition

from streams.audit import Options, Verdict, audited
from tests.support.flows import Job
from tests.support.rig import Rig
from tests.support.second_opinion import KNOWN, opinion


def project(rig: Rig) -> None:
    """Wait until the projection has seen all of job-state."""
    topic = rig.settings.names.job_state_topic
    rig.wait(
        lambda: (
            rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"]
            + rig.sql("SELECT count(*) AS n FROM projection_rejects")[0]["n"]
            >= len(rig.log(topic))
        ),
        "the projection has seen all states",
    )


def finished_run(rig: Rig, jobs: int = 40) -> list[str]:
    """Jobs that went the whole way, with an effect each; drained, projected, the worker stopped."""
    worker = rig.worker()
    ids = rig.submit([Job(n=n, effect="repeatable") for n in range(jobs)])
    rig.wait_results(jobs)
    rig.wait_drained()
    project(rig)
    assert worker.stop() == 0
    return ids


def found(rig: Rig, **options: Any) -> set[tuple[str, str]]:
    """(rule, job) of all findings; the second opinion agrees on what it knows."""
    with audited(rig.settings, Options(**options)) as verdict:
        mine = pairs(verdict)
        assert verdict.clean == (not mine)
    assert {x for x in mine if x[0] in KNOWN} == opinion(rig)
    return mine


def pairs(verdict: Verdict) -> set[tuple[str, str]]:
    return {(f.rule, f.job or "") for f in verdict.findings()}


def state_bytes(rig: Rig, job: str, seq: int, /, **changes: Any) -> bytes:
    """The state of a step as it lies there, with changes."""
    for record in rig.log(rig.settings.names.job_state_topic):
        state = json.loads(record.value or b"")
        if (state["traceId"], state["seq"]) == (job, seq):
            return json.dumps({**state, **changes}).encode()
    raise AssertionError(f"no step {seq} of {job}")


def forge(rig: Rig, topic: str, job: str, value: bytes, headers: Sequence[Any] = ()) -> None:
    """Write a record as somebody else."""
    servers = rig.settings.kafka_bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    producer.produce(topic, value, job.encode(), headers=list(headers))
    assert producer.flush(30) == 0


def truncate(rig: Rig, topic: str, partition: int, before: int) -> None:
    """Remove all records of a partition below an offset."""
    futures = rig.admin.delete_records([TopicPartition(topic, partition, before)])
    for future in futures.values():
        future.result(30)
