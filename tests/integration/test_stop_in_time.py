"""A worker that is told to stop is gone in time, whatever its handlers do (invariant I10).

The bound on the time is generous, since the machine may be slow; what a handler or a service would
take otherwise is far beyond it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.ports import free_ports
from streams.config import Settings
from tests.integration.test_flow_postgres_away import postgres_away
from tests.support import deadly
from tests.support.deadly import Deed
from tests.support.flows import Job
from tests.support.health import Probe
from tests.support.judge import assert_all_done_once
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

GRACE_S = 2.0
#: A second or two, and as much again for a machine with other things to do.
SLACK_S = 6.0


@contextmanager
def in_time() -> Iterator[None]:
    began_at = time.monotonic()
    yield
    assert time.monotonic() - began_at < GRACE_S + SLACK_S


@pytest.mark.parametrize("deed", ["deaf", "thread"])
def test_handlers_that_do_not_let_go_are_left_behind_and_their_work_is_not_committed(
    settings: Settings, tmp_path: Path, deed: str
) -> None:
    with Rig(settings, tmp_path, deadly.concurrent, partitions=1, grace_s=GRACE_S) as rig:
        app = "tests.support.deadly:concurrent"
        worker = rig.worker("strike", app=app)
        rig.submit([Deed(n=n, deed=deed if n == 3 else "") for n in range(6)])
        rig.wait_results(5)
        rig.wait(lambda: "at it" in worker.log, "the handler is at it")
        with in_time():
            assert worker.stop() == 0
        assert not rig.drained("strike")
        assert rig.sql("SELECT clean FROM workers") == [{"clean": True}]
        assert {s.trace_id for s in rig.states()} == {job_id(n) for n in range(6) if n != 3}


def test_a_handler_that_blocks_the_loop_through_the_grace_ends_the_process(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.inline, partitions=1, grace_s=GRACE_S) as rig:
        worker = rig.worker("strike", app="tests.support.deadly:inline")
        rig.submit([Deed(n=0, deed="spin")])
        rig.wait(lambda: "at it" in worker.log, "the handler is at it")
        with in_time():
            assert worker.stop() == 1
        assert "blocked the event loop for all of the grace" in worker.log
        assert rig.states() == []


def test_a_second_sigterm_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, grace_s=3_600.0) as rig:
        ids = rig.submit([Job(n=n, gate="soon") for n in range(20)])
        rig.worker("take", "finish")
        probe = Probe()
        worker = rig.worker("work", health_port=probe.port)
        rig.wait(lambda: rig.target.waiting("soon") == 20, "handlers are running")
        worker.signal(signal.SIGTERM)
        rig.wait(lambda: "is stopping" in probe("readyz").text, "it stops")
        assert probe.both() == (200, 503)
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)
        rig.target.open("soon")
        assert worker.ended() == 0
        assert rig.drained("work"), "nothing is left for a successor"
        rig.wait_results(20)
        assert_all_done_once(rig, ids)


def test_a_stop_while_postgres_is_away_ends_in_time(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, grace_s=GRACE_S, database_timeout_s=2.0) as rig:
        worker = rig.worker()
        rig.submit([Job(n=n, gate="away", effect="repeatable") for n in range(20)])
        rig.wait(lambda: rig.target.waiting("away") == 20, "jobs stand before their effect")
        with postgres_away(rig.settings):
            rig.target.open("away")
            rig.wait(lambda: "stage_paused" in worker.log, "stages say that they wait")
            with in_time():
                assert worker.stop() == 0
        assert rig.target.calls == []


def test_a_stop_before_the_start_is_over_ends_in_time(settings: Settings, tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    with Rig(settings, tmp_path, grace_s=GRACE_S) as rig:
        probe = Probe()
        worker = rig.worker(
            "work", health_port=probe.port, kafka_bootstrap_servers=f"127.0.0.1:{nobody}"
        )
        rig.wait(lambda: probe("readyz").status == 503, "it tries to start")
        with in_time():
            assert worker.stop() == 0


def test_a_worker_without_its_database_exits_and_says_so(
    settings: Settings, tmp_path: Path
) -> None:
    (nobody,) = free_ports(1)
    with Rig(settings, tmp_path) as rig:
        url = f"postgresql://postgres@127.0.0.1:{nobody}/handoff"
        worker = rig.worker("work", database_url=url, database_timeout_s=2.0)
        assert worker.ended() == 3
        assert f"Postgres at 127.0.0.1:{nobody}/handoff does not serve" in worker.log
