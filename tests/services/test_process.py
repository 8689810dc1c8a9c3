"""A guarded process: it does what it is told, and never outlives the one who started it.

Method: a stand-in service that writes its pid and what it does to its log; the kernel is asked
whether it still runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.process import (
    Account,
    Guarded,
    Place,
    ServiceFailed,
    fresh_log,
    lines_since,
    run_tool,
    tail,
)

PATIENCE_S = 60.0

#: Ends on SIGTERM, and says so; `deaf` does not.
SERVICE = """
import signal, sys, time
def end(*_):
    print("asked to end", flush=True)
    if "deaf" not in sys.argv: sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True: time.sleep(60)
"""


def wait_until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """True for a process that is not a zombie."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


def start(home: Path, *arguments: str) -> Guarded:
    log = home / "service.log"
    fresh_log(log)
    service = Guarded(
        "The stand-in",
        [sys.executable, "-u", "-c", SERVICE, *arguments],
        place=Place(home, throwaway="throwaway" in arguments),
        log=log,
        stop_signal="SIGTERM",
        grace_s=0.5 if "deaf" in arguments else PATIENCE_S,
    )
    wait_until(lambda: "ready" in log.read_text(), "the stand-in is ready")
    return service


def test_a_stopped_service_was_asked_and_is_gone(tmp_path: Path) -> None:
    service = start(tmp_path)
    assert runs(service.pid)
    service.stop()
    assert not service.running
    assert not runs(service.pid)
    assert "asked to end" in (tmp_path / "service.log").read_text()


def test_a_service_that_does_not_listen_is_killed_after_its_grace(tmp_path: Path) -> None:
    service = start(tmp_path, "deaf")
    service.stop()
    assert not runs(service.pid)
    assert "asked to end" in (tmp_path / "service.log").read_text()


def test_a_killed_service_was_not_asked(tmp_path: Path) -> None:
    service = start(tmp_path)
    service.kill()
    assert not runs(service.pid)
    assert "asked to end" not in (tmp_path / "service.log").read_text()


def test_a_second_stop_or_kill_changes_nothing(tmp_path: Path) -> None:
    service = start(tmp_path)
    service.stop()
    service.stop()
    service.kill()
    assert not service.running


def test_the_end_of_a_service_is_seen(tmp_path: Path) -> None:
    service = start(tmp_path)
    os.kill(service.pid, signal.SIGKILL)
    wait_until(lambda: not service.running, "the guard tells that its service has ended")
    service.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_service_does_not_outlive_its_guard(tmp_path: Path) -> None:
    service = start(tmp_path)
    os.kill(service._process.pid, signal.SIGKILL)
    wait_until(lambda: not runs(service.pid), "the service ends with its guard")
    service.stop()


PARENT = """
import sys, threading
from pathlib import Path
from tests.services.test_process import start
# Started by a thread that ends: only the process counts.
pids = []
thread = threading.Thread(target=lambda: pids.append(start(Path(sys.argv[1]), *sys.argv[2:])))
thread.start(); thread.join()
print(pids[0].pid, flush=True)
sys.stdin.read()
"""


def parent_of_a_service(home: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(home), *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_service_ends_with_the_process_that_started_it(tmp_path: Path, name: str) -> None:
    parent, pid = parent_of_a_service(tmp_path)
    assert runs(pid)
    with parent:
        parent.send_signal(signal.Signals[name])
    wait_until(lambda: not runs(pid), "the service ends with its parent")
    assert "asked to end" in (tmp_path / "service.log").read_text()


def test_what_was_to_be_thrown_away_is_gone_after_a_sigkill(tmp_path: Path) -> None:
    home = tmp_path / "run" / "service"
    home.mkdir(parents=True)
    parent, pid = parent_of_a_service(home, "throwaway")
    assert runs(pid)
    with parent:
        parent.kill()
    wait_until(lambda: not home.parent.exists(), "the guard removes the directory")
    assert not runs(pid)
    assert tmp_path.exists()


def test_what_is_kept_is_still_there_after_a_sigkill(tmp_path: Path) -> None:
    home = tmp_path / "service"
    home.mkdir()
    parent, pid = parent_of_a_service(home)
    with parent:
        parent.kill()
    wait_until(lambda: not runs(pid), "the service ends with its parent")
    assert (home / "service.log").exists()


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root runs things as another user"
)
def test_root_runs_a_service_as_another_user(tmp_path: Path) -> None:
    # A shell: the interpreter that runs this may lie where only root can reach it.
    tmp_path.chmod(0o711)
    log = tmp_path / "service.log"
    service = Guarded(
        "The stand-in",
        ["/bin/sh", "-c", "id -u; echo ready; exec sleep 1000"],
        place=Place(tmp_path),
        log=log,
        stop_signal="SIGTERM",
        grace_s=PATIENCE_S,
        account=Account("nobody", 65534, 65534),
    )
    wait_until(lambda: "ready" in log.read_text(), "the stand-in is ready")
    # The signal that ties it to its guard must outlive the change of user.
    os.kill(service._process.pid, signal.SIGKILL)
    wait_until(lambda: not runs(service.pid), "the service ends with its guard")
    service.stop()
    assert log.read_text().startswith("65534\n")


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match="could not be executed"):
        Guarded(
            "The stand-in",
            [str(tmp_path / "nothing-here")],
            place=Place(tmp_path),
            log=tmp_path / "service.log",
            stop_signal="SIGTERM",
            grace_s=1,
        )


def test_a_failed_tool_names_its_log_and_shows_its_end(tmp_path: Path) -> None:
    log = tmp_path / "tool.log"
    log.write_text("of an earlier run\n")
    with pytest.raises(ServiceFailed) as failure:
        run_tool("The tool", ["/bin/sh", "-c", "echo 'no space left'; exit 3"], log=log)
    assert "The tool ended with exit code 3" in failure.value.message
    assert str(log) in failure.value.message
    assert "no space left" in failure.value.message
    assert "of an earlier run" not in failure.value.message


def test_a_long_log_is_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_bytes(b"x" * (8 * 2**20 + 1))
    assert fresh_log(log) == 0
    assert log.read_bytes() == b""
    assert (tmp_path / "long.log.1").stat().st_size == 8 * 2**20 + 1


def test_only_new_lines_of_a_log_are_read_and_only_the_last_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("old\n")
    since = fresh_log(log)
    with log.open("a") as file:
        file.writelines(f"line {n}\n" for n in range(100))
    assert lines_since(log, since).startswith("line 0\n")
    assert tail(lines_since(log, since)).splitlines()[0] == "  line 88"
