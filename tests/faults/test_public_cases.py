"""Faults that users of other stream processors met (docs: faust, aiokafka, faststream, …), one test
for each, by the number that it has in our list of them. Those that stand with their subject:

    14  tests/integration/test_flow_stop.py
    22  tests/crash/test_offset_map.py, tests/integration/test_rebalance.py
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from streams.config import Settings
from tests.conftest import NewSettings
from tests.faults.conftest import Hurt
from tests.support.flows import Job
from tests.support.judge import (
    assert_all_done_once,
    assert_each_effect_once,
    assert_no_step_twice,
    in_order_per_job,
)
from tests.support.kafka_proxy import Api
from tests.support.proxy import Proxy
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

#: Time-outs that an outage of `AWAY_S` exceeds.
SHORT: dict[str, Any] = {"session_timeout_ms": 2_000, "transaction_timeout_ms": 3_000}
#: The broker also looks only once a second for what has timed out.
AWAY_S = 7.0


def _hand_off(rig: Rig, jobs: list[Job]) -> None:
    rig.hand_off("work", [(job_id(j.n), 1, j) for j in jobs])


def _assert_handed_on_once(rig: Rig, jobs: list[Job]) -> None:
    rig.wait_drained("work")
    assert_no_step_twice(rig)
    assert Counter(r.job for r in rig.records("finish")) == Counter(job_id(j.n) for j in jobs)


def test_case_01_a_slow_record_is_not_lost_when_later_ones_finish_and_the_worker_is_killed(
    settings: Settings, tmp_path: Path
) -> None:
    jobs = [Job(n=n, gate="" if n else "slow") for n in range(50)]
    with Rig(settings, tmp_path, partitions=1) as rig:
        _hand_off(rig, jobs)
        worker = rig.worker("work")
        rig.wait(lambda: len(rig.records("finish")) == 49, "the later ones are done")
        assert rig.target.waiting("slow") == 1
        worker.kill()
        assert rig.committed("work")[0][0] == 0, "the position is that of the slow record"
        rig.target.open("slow")
        rig.worker("work")
        _assert_handed_on_once(rig, jobs)


def test_case_06_a_rebalance_does_not_wait_for_a_handler_that_cannot_be_cancelled(
    settings: Settings, tmp_path: Path
) -> None:
    """And what that handler brings in the end, when its partition is another worker's, is dropped.

    Goal: rule 1 in running workers. The handlers swallow their cancellation.
    """
    jobs = [Job(n=n, gate="deaf", fault="deaf") for n in range(40)]
    with Rig(settings, tmp_path) as rig:
        _hand_off(rig, jobs)
        older = rig.worker("work")
        rig.wait(lambda: rig.target.waiting("deaf") == 40, "all handlers are at work in slot 0")
        newer = rig.worker("work", slot=1)
        rig.wait(lambda: rig.target.waiting("deaf", newer.process.pid) > 0, "slot 1 has partitions")
        rig.wait(
            lambda: rig.target.waiting("deaf", older.process.pid) == 40, "and slot 0 all handlers"
        )
        rig.target.open("deaf")
        _assert_handed_on_once(rig, jobs)


def test_case_07_workers_go_on_by_themselves_after_the_broker_was_away(
    hurt: Hurt, tmp_path: Path
) -> None:
    """Longer than the session, the transaction's and the commit's time-out. Work is in flight when
    it goes, and finishes while it is away."""
    with Rig(hurt.settings, tmp_path, commit_timeout_s=4.0, **SHORT) as rig:
        worker = rig.worker()
        ids = rig.submit([Job(n=n, gate="" if n % 2 else "away") for n in range(100)])
        rig.wait_results(50)
        rig.wait(lambda: rig.target.waiting("away") == 50, "half of the jobs are at work")
        hurt.kafka.stop()
        rig.target.open("away")
        time.sleep(AWAY_S)
        assert worker.running
        hurt.kafka.start()
        rig.wait_results(100)
        ids += rig.submit([Job(n=n) for n in range(100, 150)])
        rig.wait_results(150)
        assert_all_done_once(rig, ids)
        assert worker.stop() == 0


def test_case_08_a_stop_ends_within_its_bound_when_the_database_does_not_answer(
    settings: Settings, tmp_path: Path
) -> None:
    """The connections stay, but nothing comes: what a machine that froze looks like."""
    port = int(str(conninfo_to_dict(settings.database_url)["port"]))
    with Proxy(port) as proxy, Rig(settings, tmp_path, grace_s=1.0) as rig:
        url = make_conninfo(settings.database_url, host="127.0.0.1", port=proxy.port)
        worker = rig.worker(database_url=url, database_timeout_s=2.0)
        ids = rig.submit([Job(n=n, gate="stop", effect="repeatable") for n in range(50)])
        rig.wait(lambda: rig.target.waiting("stop") == 50, "jobs stand before their effect")
        with proxy.frozen():
            rig.target.open("stop")
            rig.wait(lambda: "stage_paused" in worker.log, "the database is missed")
            assert worker.stop() == 0
        rig.worker()
        rig.wait_results(50)
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(50))


def test_case_09_a_one_to_one_copy_that_is_killed_and_restarted_has_no_duplicates(
    settings: Settings, tmp_path: Path
) -> None:
    count = 4_000
    with Rig(settings, tmp_path, max_in_flight_records=64, max_commit_records=20) as rig:
        rig.hand_off("finish", [(job_id(n), 2, Job(n=n)) for n in range(count)])
        for part in (1, 2, 3):
            worker = rig.worker("finish")
            rig.wait_results(part * count // 10)
            worker.kill()
            assert rig.finished() < count, "work was in flight at the kill"
        rig.worker("finish")
        rig.wait_drained("finish")
        copied = Counter(r.job for r in rig.records("done"))
        assert copied == Counter(job_id(n) for n in range(count))
        assert_no_step_twice(rig)


def test_case_10_a_handler_that_outlives_the_poll_interval_runs_once_and_idling_costs_nothing(
    new_settings: NewSettings, tmp_path: Path
) -> None:
    """Once with room for more records, once with none, when the consumer is paused."""
    changes = {"max_poll_interval_ms": 10_000}
    for name in ("full", "roomy"):
        (tmp_path / name).mkdir()
    with (
        Rig(new_settings(), tmp_path / "full", **changes) as full,
        Rig(new_settings(), tmp_path / "roomy", **changes) as roomy,
    ):
        held = [Job(n=n, gate="long", effect="repeatable") for n in range(4)]
        _hand_off(full, held)
        workers = [full.worker("work", max_in_flight_records=2), roomy.worker("work")]
        # `take` has nothing to do all the time.
        workers.append(full.worker("take"))
        full.wait(lambda: full.target.waiting("long") == 2, "there is no room for more")
        full.wait(lambda: "assigned" in workers[2].log, "the idle one is in its group")
        slow = [Job(n=n, wait_ms=12_000, effect="repeatable") for n in range(4)]
        _hand_off(roomy, slow)
        roomy.wait(lambda: len(roomy.records("finish")) == 4, "those took longer than a poll may")
        full.target.open("long")
        for rig, jobs in ((full, held), (roomy, slow)):
            _assert_handed_on_once(rig, jobs)
            assert len(rig.target.calls) == 4
        ids = full.submit([Job(n=20)])
        full.wait(lambda: ids[0] in {r.job for r in full.records("work")}, "the idle one works")
        for each in workers:
            assert each.log.count("assigned") == 1, "it never left its group"
            assert each.stop() == 0


def test_case_11_producers_are_rebuilt_after_an_outage_and_order_per_job_is_kept(
    hurt: Hurt, tmp_path: Path
) -> None:
    """Longer than the transaction's time-out: the broker has aborted what was open and raised the
    epoch, so that the producer's next request is fenced."""
    records = 10
    steps = [
        (job_id(n), seq, Job(n=n, wait_ms=(n * seq) % 40))
        for seq in range(1, records + 1)
        for n in range(60)
    ]
    few = {"max_in_flight_records": 64, "max_commit_records": 20}
    with Rig(hurt.settings, tmp_path, **few, **SHORT) as rig:
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        rig.hand_off("work", steps)
        rig.wait(lambda: len(rig.records("finish")) > 100, "the stream runs")
        with hurt.proxy.away():
            assert len(rig.records("finish")) < len(steps), "work was in flight"
            time.sleep(AWAY_S)
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        expected = {job_id(n): list(range(2, records + 2)) for n in range(60)}
        assert in_order_per_job(rig.records("finish")) == expected
        assert worker.stop() == 0


def test_case_12_a_consumer_whose_connections_died_in_silence_goes_on(
    hurt: Hurt, tmp_path: Path
) -> None:
    with Rig(hurt.settings, tmp_path) as rig:
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        jobs = [Job(n=n) for n in range(100)]
        _hand_off(rig, jobs[:50])
        rig.wait_drained("work")
        hurt.proxy.go_half_open()
        _hand_off(rig, jobs[50:])
        _assert_handed_on_once(rig, jobs)
        assert worker.stop() == 0


def test_case_21_nothing_is_acknowledged_before_its_work_is_done(
    settings: Settings, tmp_path: Path
) -> None:
    jobs = [Job(n=n, gate="kill") for n in range(40)]
    with Rig(settings, tmp_path) as rig:
        _hand_off(rig, jobs)
        worker = rig.worker("work")
        rig.wait(lambda: rig.target.waiting("kill") == 40, "all are at work")
        worker.kill()
        assert {offset for offset, _ in rig.committed("work").values()} == {0}
        second = rig.worker("work")
        rig.wait(
            lambda: rig.target.waiting("kill", second.process.pid) == 40, "all are delivered again"
        )
        rig.target.open("kill")
        _assert_handed_on_once(rig, jobs)


def test_case_23_a_delivery_that_fails_aborts_the_transaction_which_is_done_again(
    hurt: Hurt, tmp_path: Path
) -> None:
    """A produce request is swallowed, and there is no way to repeat it until the driver has given
    its records up. `job-state`, in the same transaction, had taken its part."""
    jobs = [Job(n=n) for n in range(50)]
    with Rig(
        hurt.settings, tmp_path, transaction_timeout_ms=4_000, session_timeout_ms=30_000
    ) as rig:
        swallowed = hurt.proxy.hold(Api.PRODUCE, rig.topic("finish").encode())
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, jobs)
        rig.wait(swallowed.caught.is_set, "hand-offs are on their way")
        with hurt.proxy.away():
            rig.wait(lambda: "failed delivery" in worker.log, "their delivery fails")
        _assert_handed_on_once(rig, jobs)
        assert len(rig.states()) == 50
        assert worker.log.count("assigned") == 1, "what had been done was committed, not run again"
        assert worker.stop() == 0
