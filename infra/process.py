"""A service as a guarded child process, and the sentence that says why it did not start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streams.errors import BadSetup

_GUARD: Final = Path(__file__).with_name("guard.py")
_TAIL_LINES: Final = 12
_LOG_KEPT_BYTES: Final = 8 * 2**20


class ServiceFailed(BadSetup):
    """Kafka or Postgres cannot be started here.

    Operator action: do what the message says, or point KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL at
    running ones.
    """


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a service runs as when we are root and it must not be."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where one service lives, and what happens to that when we are gone."""

    #: Data, settings and log of the service.
    home: Path
    #: True: the directory is removed after a clean stop and when our process dies.
    throwaway: bool = False
    #: Kept open by the guard: a lock on the data that lasts until the service has really ended.
    lock_fd: int | None = None
    #: Set by another thread to give up a start that is under way.
    cancelled: threading.Event = field(default_factory=threading.Event)

    def check(self, name: str) -> None:
        if self.cancelled.is_set():
            raise ServiceFailed(f"The start of {name} was given up.")


class Guarded:
    """One running service under its guard (`infra.guard`).

    Raises `ServiceFailed` when the command cannot be executed. It ends by `stop` or `kill`, and
    whenever this process ends, SIGKILL included. A process that was forked from this one without
    exec keeps it alive as long as it lives itself.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        place: Place,
        log: Path,
        stop_signal: str,
        grace_s: float,
        account: Account | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._grace_s = name, grace_s
        start = fresh_log(log)
        options = ["--log", str(log), "--cwd", str(place.home), "--stop-signal", stop_signal]
        options += ["--grace", str(grace_s)]
        if account is not None:
            options += ["--uid", str(account.uid), "--gid", str(account.gid)]
        if place.throwaway:
            options += ["--remove", str(place.home)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), *options, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is for us: we stop in order
            pass_fds=() if place.lock_fd is None else (place.lock_fd,),
            env=env,
        )
        self.pid = self._first_line(log, start)

    def _first_line(self, log: Path, start: int) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._end()
            raise not_started(self._name, log, start, "could not be executed")
        return int(line)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end, SIGKILL it after its grace; returns once it is gone. Safe to repeat."""
        self._order(b"s")

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone. Safe to repeat."""
        self._order(b"k")

    def _order(self, order: bytes) -> None:
        assert self._process.stdin is not None
        if self.running:
            with suppress(BrokenPipeError):
                os.write(self._process.stdin.fileno(), order)
        self._process.wait(self._grace_s + 30)
        self._end()

    def _end(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def fresh_log(path: Path) -> int:
    """Make ready to append to a log: a long one is put aside. Returns where new lines begin."""
    if path.exists() and path.stat().st_size > _LOG_KEPT_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    path.touch()
    return path.stat().st_size


def lines_since(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")


def tail(text: str) -> str:
    """The last lines of a log, for a message."""
    return "\n".join(f"  {line}" for line in text.splitlines()[-_TAIL_LINES:])


def not_started(name: str, log: Path, start: int, why: str) -> ServiceFailed:
    return ServiceFailed(
        f"{name} {why}. Its log is {log}, and ends:\n{tail(lines_since(log, start))}"
    )


def run_tool(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    account: Account | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a short program that prepares a service; its output goes to the service's log.

    Raises `ServiceFailed` with the end of the log unless it exits with 0.
    """
    start = fresh_log(log)
    with log.open("ab") as out:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=log.parent,
            env=env,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=() if account else None,
            check=False,
        ).returncode
    if code != 0:
        raise not_started(name, log, start, f"ended with exit code {code}")
