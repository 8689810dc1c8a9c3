"""A worker whose transactions are aborted under it finds out what happened and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once
from tests.support.rig import Rig

pytestmark = pytest.mark.services

ROUND = 150
MOST_ROUNDS = 40


def test_a_worker_that_is_fenced_in_mid_stream_rebuilds_and_stays_exactly_once(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64, max_commit_records=20) as rig:
        worker = rig.worker()
        # In flight until the end, whatever else is done by then.
        ids = rig.submit([Job(n=n, gate="end") for n in range(10)])
        while not _aborted(rig):
            assert len(ids) < MOST_ROUNDS * ROUND, "no transaction was open at any of the fences"
            jobs = [Job(n=len(ids) + n, wait_ms=1 + n % 40) for n in range(ROUND)]
            seen = len(rig.records("finish"))
            ids += rig.submit(jobs)
            _wait_for_more(rig, seen)
            _fence(rig, "work")
        assert rig.finished() < len(ids), "work was in flight at the last fence"
        rig.target.open("end")
        rig.wait_results(len(ids))
        assert_all_done_once(rig, ids)
        assert worker.running, "one process all the time"
        assert worker.stop() == 0


def _wait_for_more(rig: Rig, than: int) -> None:
    rig.wait(lambda: len(rig.records("finish")) > than, "the worker goes on")


def _fence(rig: Rig, stage: str) -> None:
    """Another producer takes the transactional id: what is open under it is aborted."""
    producer = Producer(
        {
            "bootstrap.servers": rig.settings.kafka_bootstrap_servers,
            "transactional.id": rig.settings.names.member(rig.group(stage), 0),
        }
    )
    producer.init_transactions(30)


def _aborted(rig: Rig) -> int:
    """How many records of aborted transactions lie in the hand-off topics."""
    topic = rig.topic("finish")
    # The committed ones first: meanwhile more can only be added to the others.
    committed = {(r.partition, r.offset) for r in rig.log(topic)}
    everything = rig.log(topic, committed=False)
    ends = {p: max((o for q, o in committed if q == p), default=-1) for p, _ in committed}
    return sum(
        (r.partition, r.offset) not in committed and r.offset < ends.get(r.partition, -1)
        for r in everything
    )
