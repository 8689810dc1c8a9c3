"""A peer as a process group of its own, and what processes cost, read from /proc.

Without /proc (not Linux) figures are None and the bench says so with a dash.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TAIL_LINES: Final = 12


class PeerDied(Exception):
    """A peer ended by itself. The message says how, with the end of its log."""


class PeerGroup:
    """One running peer: started in a new session, ended by killing that group only."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path
    ) -> None:
        self._name, self._log = name, log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def pgid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise `PeerDied` if the peer has ended."""
        code = self._process.poll()
        if code is not None:
            raise PeerDied(f"{self._name} ended with exit code {code}. {tail(self._log)}")

    def kill(self) -> None:
        """SIGKILL to the whole group; returns once its leader is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pgid, signal.SIGKILL)
        self._process.wait()


def tail(log: Path) -> str:
    """The last lines of a log, for a message."""
    lines = log.read_text(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    return "Its log ends:\n  " + "\n  ".join(lines) if lines else "It wrote no log."


@dataclass(frozen=True)
class Process:
    """One line of the process table; `cpu_s` includes children that it has waited for."""

    pid: int
    parent: int
    pgid: int
    cpu_s: float


def parse_stat(text: str, ticks_per_s: int) -> Process:
    """Read `/proc/<pid>/stat`; the command in parentheses may itself hold any character."""
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    cpu = sum(int(ticks) for ticks in fields[11:15]) / ticks_per_s
    return Process(int(head.split(" ", 1)[0]), int(fields[1]), int(fields[2]), cpu)


def process_table() -> list[Process]:
    """Every process that could be read; empty where there is no /proc."""
    table = []
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            table.append(parse_stat(path.read_text(), os.sysconf("SC_CLK_TCK")))
        except OSError:  # it has just ended
            continue
    return table


def group_cpu_s(pgid: int) -> float | None:
    """CPU seconds of a process group since its start."""
    members = [p.cpu_s for p in process_table() if p.pgid == pgid]
    return sum(members) if members else None


def group_peak_mb(pgid: int) -> float | None:
    """Sum of the members' largest resident sizes, in MiB."""
    peaks = []
    for process in process_table():
        if process.pgid == pgid:
            try:
                status = (_PROC / str(process.pid) / "status").read_text()
            except OSError:
                continue
            peaks += [int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM:")]
    return sum(peaks) / 1024 if peaks else None


def tree_cpu_s(root: int | None, table: Sequence[Process]) -> float | None:
    """CPU seconds of a process, its living descendants, and those it has waited for."""
    by_pid = {p.pid: p for p in table}
    if root is None or root not in by_pid:
        return None
    family, found = {root}, True
    while found:
        found = {p.pid for p in table if p.parent in family} - family != set()
        family |= {p.pid for p in table if p.parent in family}
    return sum(by_pid[pid].cpu_s for pid in family)
