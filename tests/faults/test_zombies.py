"""Workers that were given up and come back (decision 3, rules 1 and 5): they write nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.conftest import Hurt
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice
from tests.support.kafka_proxy import Api
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

JOBS = 50


def _hand_off(rig: Rig, first: int, count: int = JOBS) -> None:
    rig.hand_off("work", [(job_id(n), 1, Job(n=n)) for n in range(first, first + count)])


def _transactional_id(rig: Rig, slot: int = 0) -> bytes:
    return rig.settings.names.member(rig.group("work"), slot).encode()


def _written_by(rig: Rig, slot: int) -> int:
    return sum((s.worker or "").startswith(f"{slot}.") for s in rig.states())


def test_a_worker_stopped_in_mid_commit_past_its_session_and_its_transaction_writes_nothing(
    hurt: Hurt, tmp_path: Path
) -> None:
    """Its commit request arrives when another worker has done its work."""
    with Rig(hurt.settings, tmp_path) as rig:
        held = hurt.proxy.hold(Api.END_TXN, _transactional_id(rig), cut=False)
        zombie = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, 0)
        rig.wait(held.caught.is_set, "slot 0 is in the middle of a commit")
        zombie.signal(signal.SIGSTOP)
        rig.worker("work", slot=1)
        rig.wait_drained("work")
        assert held.deliver() != 0, "the broker took the commit of a transaction that it had ended"
        assert _written_by(rig, 1) == JOBS
        zombie.signal(signal.SIGCONT)
        more = 0

        def works_again() -> bool:
            nonlocal more
            _hand_off(rig, JOBS + more, 8)
            more += 8
            return _written_by(rig, 0) > 0

        rig.wait(works_again, "the zombie is a worker again")
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert {r.job for r in rig.records("finish")} == {job_id(n) for n in range(JOBS + more)}
        assert {s.trace_id for s in rig.states() if (s.worker or "").startswith("0.")} <= {
            job_id(n) for n in range(JOBS, JOBS + more)
        }
        assert zombie.stop() == 0


def test_the_next_owner_waits_for_a_commit_of_the_last_one_that_is_still_under_way(
    hurt: Hurt, tmp_path: Path
) -> None:
    """The last owner is dead, its transaction not yet timed out. The next one must read *stable*
    offsets: the commit request arrives after the partitions have moved, and counts."""
    with Rig(hurt.settings, tmp_path, transaction_timeout_ms=60_000) as rig:
        held = hurt.proxy.hold(Api.END_TXN, _transactional_id(rig), cut=False)
        last = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, 0)
        rig.wait(held.caught.is_set, "slot 0 is in the middle of a commit")
        # The proxy keeps its connection to the broker although the process is gone.
        last.kill()
        asked = hurt.proxy.seen[Api.OFFSET_FETCH]
        rig.worker("work", slot=1, kafka_bootstrap_servers=hurt.proxy.address)
        rig.wait(
            lambda: hurt.proxy.seen[Api.OFFSET_FETCH] > asked, "slot 1 asks from where to go on"
        )
        assert rig.committed("work")[0][0] == 0
        assert held.deliver() == 0
        rig.wait_drained("work")
        _hand_off(rig, JOBS)
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert {r.job for r in rig.records("finish")} == {job_id(n) for n in range(2 * JOBS)}


def test_a_worker_that_is_fenced_by_a_join_of_its_own_goes_on(hurt: Hurt, tmp_path: Path) -> None:
    """A broker that stood still takes up a join that the driver has given up and repeated; the
    member that it made of the second is fenced then, as if by a twin."""
    with Rig(hurt.settings, tmp_path, session_timeout_ms=3_000) as rig:
        worker = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        _hand_off(rig, 0)
        rig.wait_drained("work")
        with hurt.proxy.frozen():
            rig.wait(lambda: "lost" in worker.log, "the session has expired")
            late = hurt.proxy.hold(Api.JOIN_GROUP, _transactional_id(rig))
        rig.wait(late.caught.is_set, "a join is on its way")
        _hand_off(rig, JOBS)
        rig.wait_drained("work")
        late.deliver()
        rig.wait(lambda: "consumer_replaced" in worker.log, "the worker is fenced")
        _hand_off(rig, 2 * JOBS)
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert worker.running


def test_a_worker_that_was_removed_while_its_join_was_on_its_way_commits_nothing_of_what_it_had(
    hurt: Hurt, tmp_path: Path
) -> None:
    """Found by the soak: the driver keeps its partitions then, and no callback says a word."""
    with Rig(hurt.settings, tmp_path, session_timeout_ms=3_000) as rig:
        removed = rig.worker("work", kafka_bootstrap_servers=hurt.proxy.address)
        rig.hand_off("work", [(job_id(n), 1, Job(n=n, gate="shut")) for n in range(JOBS)])
        rig.wait(lambda: rig.target.waiting("shut") == JOBS, "slot 0 has all of it")
        join = hurt.proxy.hold(Api.JOIN_GROUP, _transactional_id(rig), cut=False)
        other = rig.worker("work", slot=1)
        pid = other.process.pid
        rig.wait(lambda: rig.target.waiting("shut", pid) == JOBS, "slot 1 has all of it")
        assert join.caught.is_set()
        rig.target.open("shut")
        rig.wait_drained("work")
        assert _written_by(rig, 1) == JOBS, "slot 0 has it ready, too, and is refused"
        join.deliver()
        rig.wait(lambda: "consumer_replaced" in removed.log, "slot 0 has joined again")
        _hand_off(rig, JOBS)
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert {r.job for r in rig.records("finish")} == {job_id(n) for n in range(2 * JOBS)}
        assert removed.running
        assert other.running
