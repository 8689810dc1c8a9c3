"""Processes that are not ours to start: who they are, and standing still."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def children(pid: int | None) -> list[int]:
    """Processes whose parent is `pid`."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = (line.split() for line in listed.splitlines())
    return [int(child) for child, parent in pairs if int(parent) == pid]


@contextmanager
def frozen(*pids: int | None) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end; a process that is gone by then is none of ours."""
    stopped = [pid for pid in pids if pid is not None]
    for pid in stopped:
        _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
