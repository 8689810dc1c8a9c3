"""Unknown outcomes and late requests (decision 3, rules 5 and 6), by a proxy between worker and
broker. The facts are read past the proxy."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from streams import topics
from streams.runtime.transaction import Transactor, Verdict
from tests.faults.conftest import Hurt
from tests.support.flows import Job, flow
from tests.support.judge import assert_no_step_twice
from tests.support.kafka_proxy import Api
from tests.support.rig import Rig, job_id
from tests.support.worker import Worker

pytestmark = pytest.mark.services

BATCH = 50


def _hand_off(rig: Rig, batch: int) -> None:
    first = batch * BATCH
    rig.hand_off("work", [(job_id(n), 1, Job(n=n)) for n in range(first, first + BATCH)])


def _transactional_id(rig: Rig, slot: int = 0) -> bytes:
    return rig.settings.names.member(rig.group("work"), slot).encode()


def _assert_once(rig: Rig, worker: Worker, batches: int) -> None:
    rig.wait_drained("work")
    assert_no_step_twice(rig)
    assert {r.job for r in rig.records("finish")} == {job_id(n) for n in range(batches * BATCH)}
    assert worker.running, "one process all the time"
    assert worker.stop() == 0


def test_a_commit_whose_reply_is_lost_is_done_once(hurt: Hurt, tmp_path: Path) -> None:
    """The driver repeats its request on another connection."""
    with Rig(hurt.settings, tmp_path) as rig:
        lost = hurt.proxy.lose_reply(Api.END_TXN, _transactional_id(rig))
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, 0)
        rig.wait(lost.happened.is_set, "the reply to a commit is lost")
        _hand_off(rig, 1)
        _assert_once(rig, worker, batches=2)


def test_a_commit_of_unknown_outcome_that_happened_is_found_out_and_not_repeated(
    hurt: Hurt, tmp_path: Path
) -> None:
    """The reply is lost, and Kafka is away until the worker has given the commit up."""
    with Rig(hurt.settings, tmp_path, commit_timeout_s=2.0) as rig:
        lost = hurt.proxy.lose_reply(Api.END_TXN, _transactional_id(rig))
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, 0)
        rig.wait(lost.happened.is_set, "the reply to a commit is lost")
        with hurt.proxy.away():
            rig.wait(lambda: "commit_failed" in worker.log, "the worker gives the commit up")
        rig.wait(lambda: "commit_resolved" in worker.log, "the worker finds out")
        assert "outcome=['committed']" in worker.log
        _hand_off(rig, 1)
        _assert_once(rig, worker, batches=2)


def test_a_commit_of_unknown_outcome_that_did_not_happen_is_found_out_and_done_again(
    hurt: Hurt, tmp_path: Path
) -> None:
    """The request never arrives, and Kafka is away until the worker has given the commit up."""
    with Rig(hurt.settings, tmp_path, commit_timeout_s=2.0) as rig:
        held = hurt.proxy.hold(Api.END_TXN, _transactional_id(rig), cut=False)
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, 0)
        rig.wait(held.caught.is_set, "a commit is on its way")
        assert rig.records("finish") == []
        with hurt.proxy.away():
            rig.wait(lambda: "commit_failed" in worker.log, "the worker gives the commit up")
        rig.wait(lambda: "commit_resolved" in worker.log, "the worker finds out")
        assert "outcome=['aborted']" in worker.log
        _hand_off(rig, 1)
        _assert_once(rig, worker, batches=2)


def test_a_commit_request_that_arrives_in_the_next_transaction_is_refused(
    hurt: Hurt, tmp_path: Path
) -> None:
    """The network swallows a commit request; the driver's repetition succeeds. When the next
    transaction holds offsets, but not the records that go with them, the first request arrives
    after all: to end that transaction would lose work."""
    with Rig(hurt.settings, tmp_path) as rig:
        late = hurt.proxy.hold(Api.END_TXN, _transactional_id(rig))
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, 0)
        rig.wait(late.caught.is_set, "a commit request is swallowed")
        rig.wait(lambda: len(rig.records("finish")) == BATCH, "its repetition committed")
        records = hurt.proxy.hold(Api.PRODUCE, rig.topic("finish").encode(), cut=False)
        _hand_off(rig, 1)
        rig.wait(records.caught.is_set, "the next transaction is open, without its records")
        assert late.deliver() != 0, "the late request ended a transaction that is not its own"
        assert len(rig.records("finish")) == BATCH
        records.deliver()
        _assert_once(rig, worker, batches=2)


def test_a_producer_that_is_replaced_is_gone(hurt: Hurt) -> None:
    """Both its commit and its abort time out; the driver leaks what is handled while it raises."""
    settings = hurt.settings.model_copy(
        update={
            "kafka_bootstrap_servers": hurt.proxy.address,
            "transaction_timeout_ms": 2_000,
            "commit_timeout_s": 4.0,
        }
    )
    topics.apply(flow, hurt.settings)
    topic = settings.names.stage_topic(flow.name, "work")
    group = {"bootstrap.servers": hurt.settings.kafka_bootstrap_servers, "group.id": topic}
    consumer = Consumer(group)
    metadata = consumer.consumer_group_metadata()
    transactor = Transactor(settings, f"{topic}-0", stopping=lambda: False)

    def commit() -> Verdict:
        records = [(topic, b"key", b"value", [])] * 10
        return transactor.commit(records, [TopicPartition(topic, 0, 0)], metadata)

    assert commit() is Verdict.COMMITTED
    before = _producers()
    hurt.proxy.go_half_open()
    assert commit() is Verdict.UNKNOWN
    assert transactor.open()
    assert commit() is Verdict.COMMITTED
    assert _producers() == before
    transactor.close()
    consumer.close()


def _producers() -> int:
    """Those of this process that are not freed."""
    gc.collect()
    return sum(isinstance(each, Producer) for each in gc.get_objects())
