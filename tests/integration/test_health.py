"""/livez and /readyz of real workers tell the truth: what a restart mends, and what it does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.ports import free_ports
from infra.services import Services
from streams.config import Settings
from tests.support import deadly
from tests.support.deadly import Deed
from tests.support.flows import Job
from tests.support.health import Probe
from tests.support.judge import assert_all_done_once
from tests.support.rig import Rig

pytestmark = pytest.mark.services

STALL_S = 2.0


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """A broker for one test alone, which may hurt it."""
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    with Services(postgres=False) as own:
        yield own


def test_a_worker_is_ready_once_it_has_joined_also_as_a_standby(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, partitions=1) as rig:
        probes = [Probe(), Probe()]
        for slot, probe in enumerate(probes):
            rig.worker(slot=slot, health_port=probe.port)
        for probe in probes:
            rig.wait(lambda p=probe: p("readyz").status == 200, "both are ready")
            assert probe("livez").status == 200
            agents = probe("readyz").body["agents"]
            assert set(agents) == {"take", "work", "finish", "projector", "timers"}
            assert all(a == {"ok": True, "why": []} for a in agents.values())
        ids = rig.submit([Job(n=n) for n in range(10)])
        rig.wait_results(10)
        assert_all_done_once(rig, ids)


def test_a_handler_that_blocks_the_loop_is_told_while_the_polling_thread_goes_on(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.inline, partitions=1) as rig:
        probe = Probe()
        rig.worker(
            "strike",
            app="tests.support.deadly:inline",
            health_port=probe.port,
            health_stall_s=STALL_S,
        )
        rig.wait(lambda: probe.both() == (200, 200), "it is well")
        rig.submit([Deed(n=0, deed="nap")])
        rig.wait(lambda: probe("livez").status == 503, "the blocked loop is told")
        answer = probe("livez")
        assert "The event loop has not turned" in answer.text
        assert "polling thread" not in answer.text
        assert probe("readyz").status == 503
        # It was a nap: the worker is well again, and has done the job.
        rig.wait(lambda: probe.both() == (200, 200), "it is well again")
        rig.wait_results(1)


def test_an_endless_loop_in_python_is_told_until_the_watchdog_ends_it(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.concurrent, partitions=1) as rig:
        probe = Probe()
        worker = rig.worker(
            "strike",
            app="tests.support.deadly:concurrent",
            health_port=probe.port,
            health_stall_s=STALL_S,
            watchdog_s=8.0,
        )
        rig.wait(lambda: probe("readyz").status == 200, "it is ready")
        rig.submit([Deed(n=0, deed="spin")])
        rig.wait(lambda: probe("livez").status == 503, "the blocked loop is told")
        assert worker.ended() == 1
        # Our sentence, then where it stood.
        assert "event_loop_hangs" in worker.log
        assert "Timeout (0:00:08)!" in worker.log
        assert "in do\n" in worker.log


def test_while_kafka_is_frozen_a_worker_is_live_and_not_ready_and_recovers(
    settings: Settings, tmp_path: Path, broker: Services
) -> None:
    assert broker.kafka is not None
    servers = broker.kafka.bootstrap_servers
    # The session outlasts the outage: this is about health, not about a group that joins anew.
    changes = {"kafka_bootstrap_servers": servers, "session_timeout_ms": 60_000}
    with Rig(settings, tmp_path, partitions=1, **changes) as rig:
        probe = Probe()
        worker = rig.worker("take", "work", "finish", health_port=probe.port, health_stall_s=6.0)
        rig.wait(lambda: probe.both() == (200, 200), "it is well")
        ids = rig.submit([Job(n=n, gate="frozen") for n in range(20)])
        rig.wait(lambda: rig.target.waiting("frozen") == 20, "handlers run")
        pid = broker.kafka.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            # What finishes now cannot be committed.
            rig.target.open("frozen")
            rig.wait(lambda: probe("readyz").status == 503, "it is not ready")
            assert "Kafka at" in probe("readyz").text
            seen = {probe("livez").status for _ in _for_seconds(15)}
            assert seen == {200}, "a restart would not help"
            assert probe("readyz").status == 503
        finally:
            os.kill(pid, signal.SIGCONT)
        lives: set[int] = set()
        rig.wait(
            lambda: lives.add(probe("livez").status) or probe("readyz").status == 200,
            "it is ready again",
        )
        assert lives == {200}
        rig.wait_results(20)
        assert_all_done_once(rig, ids)
        assert worker.stop() == 0


def test_a_worker_that_cannot_start_is_live_and_not_ready_and_then_exits(
    settings: Settings, tmp_path: Path
) -> None:
    (nobody,) = free_ports(1)
    with Rig(settings, tmp_path) as rig:
        probe = Probe()
        worker = rig.worker(
            "work", health_port=probe.port, kafka_bootstrap_servers=f"127.0.0.1:{nobody}"
        )
        rig.wait(lambda: probe("readyz").status == 503, "it is not ready")
        assert "has not started yet" in probe("readyz").text
        assert probe("livez").status == 200
        assert worker.ended() == 3
        assert f"Kafka at 127.0.0.1:{nobody} did not answer" in worker.log or (
            f"Kafka at 127.0.0.1:{nobody} does not serve" in worker.log
        )
        assert probe.both() == (0, 0)


def test_a_worker_whose_agent_dies_says_so_and_exits(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, deadly.inline, partitions=1) as rig:
        probe = Probe()
        worker = rig.worker("strike", app="tests.support.deadly:inline", health_port=probe.port)
        rig.wait(lambda: probe("readyz").status == 200, "it is ready")
        rig.submit([Deed(n=0, deed="cancel")])
        assert worker.ended() == 1
        assert "agent strike was cancelled" in worker.log


def _for_seconds(count: int) -> Iterator[int]:
    """One step a second."""
    import time

    for n in range(count):
        time.sleep(1)
        yield n
