"""Reading the process table, and ending a group without touching others."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from infra.bench.processes import (
    PeerDied,
    PeerGroup,
    Process,
    group_cpu_s,
    parse_stat,
    process_table,
    tree_cpu_s,
)

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_a_stat_line_is_read_past_a_command_with_blanks_and_brackets() -> None:
    line = "42 (a ) b) S 7 40 40 0 -1 0 0 0 0 0 150 50 20 30 20 0 1 0"
    assert parse_stat(line, 100) == Process(pid=42, parent=7, pgid=40, cpu_s=2.5)


def test_the_cost_of_a_tree_is_that_of_all_its_descendants_and_no_others() -> None:
    table = [
        Process(1, 0, 1, 100.0),
        Process(10, 1, 10, 1.0),
        Process(11, 10, 11, 2.0),
        Process(12, 11, 12, 4.0),
        Process(20, 1, 20, 50.0),
    ]
    assert tree_cpu_s(10, table) == 7.0
    assert tree_cpu_s(99, table) is None
    assert tree_cpu_s(None, table) is None


def test_a_peer_that_ends_by_itself_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "peer.log"
    group = PeerGroup("loop", [sys.executable, "-c", "raise SystemExit('no broker')"], {}, log)
    with pytest.raises(PeerDied, match=r"(?s)loop ended with exit code 1\..*no broker"):
        _until_dead(group)


@needs_proc
def test_killing_a_group_ends_its_children_too(tmp_path: Path) -> None:
    spawn = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'],"
        " stdin=subprocess.PIPE); print(p.pid, flush=True); p.wait()"
    )
    log = tmp_path / "peer.log"
    group = PeerGroup("parent", [sys.executable, "-c", spawn], {}, log)
    try:
        child = _first_line(log, group)
        assert group_cpu_s(group.pgid) is not None
    finally:
        group.kill()
    # Its new parent may not have collected it yet: a zombie keeps its group but runs no more.
    deadline = time.monotonic() + 30
    while any(p.pid == child and p.pgid == group.pgid for p in process_table()):
        assert time.monotonic() < deadline or _is_zombie(child)
        if _is_zombie(child):
            break
        time.sleep(0.01)


def _until_dead(group: PeerGroup) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        group.check()
        time.sleep(0.01)


def _first_line(log: Path, group: PeerGroup) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        group.check()
        if text := log.read_text().strip():
            return int(text)
        time.sleep(0.01)
    raise AssertionError("The parent never said whom it started.")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
