"""Child processes: restarted with back-off, stopped in order, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streams.cli.supervise import (
    ChildSpec,
    Supervisor,
    how,
    restart_wait_s,
    stop_on_signals,
)
from streams.cli.worker_processes import specs
from streams.config import load_settings

TIMEOUT_S = 30.0


def eventually(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not fact():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """A zombie that nobody has waited for is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ChildSpec]:
    """Makes the spec of a module with the given source."""
    paths = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", paths)

    def make(name: str, source: str) -> ChildSpec:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return ChildSpec(name, (name,), {"PLACE": str(tmp_path)}, log=tmp_path / f"{name}.log")

    return make


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(said: list[str]) -> Iterator[Supervisor]:
    made = Supervisor(said.append)
    yield made
    made.stop(grace_s=0)


SLEEPER = """
    import os, pathlib, signal, sys, time
    def stop(*_):
        with open(os.environ["PLACE"] + "/order", "a") as f:
            f.write(__spec__.name + "\\n")
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    pathlib.Path(os.environ["PLACE"], __spec__.name + ".ready").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
"""


def test_waits_double_up_to_half_a_minute() -> None:
    waits = [restart_wait_s(n, 1) for n in range(1, 10)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restart_wait_s(10_000, -9) == 30


@pytest.mark.parametrize("code", [2, 4])
def test_a_faulty_set_up_or_a_twin_is_not_tried_again_at_once(code: int) -> None:
    assert restart_wait_s(1, code) == 30


def test_exit_codes_are_said_in_words() -> None:
    assert how(-9) == "killed by SIGKILL"
    assert how(3) == "exit code 3"


def test_a_dead_child_is_restarted_after_its_wait_and_the_exit_code_is_said(
    child: Callable[[str, str], ChildSpec], said: list[str]
) -> None:
    now = 0.0
    supervisor = Supervisor(said.append, clock=lambda: now)
    supervisor.start(child("dies", "import sys; sys.exit(7)"))
    first = supervisor.pids()["dies"]
    eventually(lambda: supervisor.tick() or bool(said))
    assert "dies ended: exit code 7; again in 0.5 s." in said
    assert supervisor.pids() == {}
    now = 0.4
    supervisor.tick()
    assert supervisor.pids() == {}
    now = 0.5
    supervisor.tick()
    assert supervisor.pids()["dies"] != first
    eventually(lambda: supervisor.tick() or len(said) == 2)
    assert said[1].endswith("again in 1 s.")
    # After a minute of health the next death counts as the first.
    now = 1.5
    supervisor.tick()
    now = 100.0
    eventually(lambda: supervisor.tick() or len(said) == 3)
    assert said[2].endswith("again in 0.5 s.")
    supervisor.stop(grace_s=TIMEOUT_S)


def test_a_stop_waits_for_the_workers_before_it_stops_what_serves_them(
    child: Callable[[str, str], ChildSpec], supervisor: Supervisor, tmp_path: Path
) -> None:
    for name in ("desk", "worker"):
        supervisor.start(replace(child(name, SLEEPER), serves=name == "desk"))
        eventually((tmp_path / f"{name}.ready").exists)
    pids = supervisor.pids().values()
    supervisor.stop(grace_s=TIMEOUT_S)
    assert (tmp_path / "order").read_text().split() == ["worker", "desk"]
    assert not any(alive(pid) for pid in pids)


STUBBORN = """
    import os, pathlib, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path(os.environ["PLACE"], "stubborn.ready").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
"""


@pytest.mark.parametrize("in_a_hurry", [False, True])
def test_a_child_that_does_not_stop_is_killed_after_its_grace_or_in_a_hurry(
    child: Callable[[str, str], ChildSpec],
    supervisor: Supervisor,
    tmp_path: Path,
    said: list[str],
    in_a_hurry: bool,
) -> None:
    supervisor.start(child("stubborn", STUBBORN))
    eventually((tmp_path / "stubborn.ready").exists)
    pid = supervisor.pids()["stubborn"]
    hurry = threading.Event()
    if in_a_hurry:
        hurry.set()
    supervisor.stop(grace_s=3600 if in_a_hurry else 0.1, hurry=hurry)
    assert not alive(pid)
    assert "stubborn does not stop in time and is killed." in said


def test_a_kill_is_a_kill_and_a_restart_another_process(
    child: Callable[[str, str], ChildSpec], supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(child("worker", SLEEPER))
    eventually((tmp_path / "worker.ready").exists)
    killed = supervisor.kill("worker")
    assert not alive(killed)
    assert not (tmp_path / "order").exists()
    with pytest.raises(ProcessLookupError):
        supervisor.kill("worker")
    supervisor.restart("worker")
    assert supervisor.pids()["worker"] != killed


def test_no_child_outlives_a_parent_that_was_killed(
    child: Callable[[str, str], ChildSpec], tmp_path: Path
) -> None:
    spec = child("orphan", SLEEPER)
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\n"
            "from streams.cli.supervise import ChildSpec, Supervisor\n"
            f"s = Supervisor(print); s.start(ChildSpec('orphan', ('orphan',), {spec.env!r}))\n"
            "time.sleep(3600)",
        ]
    )
    ready = tmp_path / "orphan.ready"
    eventually(lambda: ready.exists() and bool(ready.read_text()))
    pid = int(ready.read_text())
    assert alive(pid)
    parent.kill()
    parent.wait()
    eventually(lambda: not alive(pid))
    assert (tmp_path / "order").read_text() == "orphan\n"


def test_the_first_signal_asks_to_stop_and_the_second_to_hurry() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as request:
        signal.raise_signal(signal.SIGTERM)
        assert request.stop.is_set()
        assert not request.hurry.is_set()
        signal.raise_signal(signal.SIGINT)
        assert request.hurry.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_fatal_end_is_not_mended_by_a_start(
    child: Callable[[str, str], ChildSpec], said: list[str]
) -> None:
    supervisor = Supervisor(said.append, fatal=(4,))
    supervisor.start(child("taken", "raise SystemExit(4)"))
    supervisor.start(child("well", "import time; time.sleep(60)"))

    def ended() -> bool:
        supervisor.tick()
        return supervisor.fault is not None

    eventually(ended)
    well = supervisor.pids()["well"]
    supervisor.stop(TIMEOUT_S)
    assert supervisor.fault == 4
    assert said == ["taken ended: exit code 4."]
    assert not alive(well)


def test_processes_have_slots_and_ports_of_their_own() -> None:
    settings = load_settings(slot=2, health_port=8_000)
    found = [spec.argv for spec in specs(3, ["classify"], "agents:flow", settings)]
    assert [argv[argv.index("--slot") + 1] for argv in found] == ["6", "7", "8"]
    assert [argv[argv.index("--health-port") + 1] for argv in found] == ["8000", "8001", "8002"]
    plain = specs(1, (), "agents:flow", load_settings(slot=0, health_port=0))
    assert plain[0].argv == ("streams.cli", "worker", "--app", "agents:flow", "--slot", "0")
