"""Child processes of one command: started together, restarted with back-off, stopped in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from streams.cli.output import BAD_SETUP, FENCED

Say = Callable[[str], None]

#: A child that has run this long is well: its next death is its first.
HEALTHY_S = 60.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_KILL_TIMEOUT_S = 10.0
_STDERR = 2
_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A Python module to run as a process of its own, and its environment on top of ours.

    What it prints is appended to the file `log`, or goes to our stderr. One that `serves` is
    stopped after all others.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    serves: bool = False


def restart_wait_s(deaths: int, exit_code: int) -> float:
    """How long to wait before start number `deaths` + 1; `deaths` in a row, from 1. Pure.

    A faulty set-up or a slot that a twin holds does not mend itself in half a second.
    """
    if exit_code in (BAD_SETUP, FENCED):
        return _LONGEST_WAIT_S
    return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(deaths - 1, 16))


class Supervisor:
    """Keeps children running. Not thread-safe: `tick` often, from one thread.

    `fault` is the exit code of a child that is not started again, since its code is one of `fatal`.
    """

    def __init__(
        self,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
        *,
        fatal: Collection[int] = (),
    ) -> None:
        self._say = say
        self._clock = clock
        self._fatal = fatal
        self.fault: int | None = None
        self._children: dict[str, _Child] = {}

    def start(self, spec: ChildSpec) -> None:
        child = _Child(spec)
        self._children[spec.name] = child
        child.start(self._clock())

    def tick(self) -> None:
        """Notice deaths, say them, restart what is due."""
        now = self._clock()
        for child in self._children.values():
            code = child.reap()
            if code is not None and code in self._fatal:
                self._say(f"{child.spec.name} ended: {how(code)}.")
                self.fault = code
                return
            if code is not None:
                wait_s = child.died(now, code)
                self._say(f"{child.spec.name} ended: {how(code)}; again in {wait_s:g} s.")
            if child.process is None and now >= child.due_at:
                child.start(now)

    def kill(self, name: str) -> int:
        """SIGKILL one child, wait until it is gone, start it again; returns the killed pid.

        Raises `ProcessLookupError` when it is not running.
        """
        child = self._children[name]
        if child.process is None or child.process.poll() is not None:
            raise ProcessLookupError(f"{name} is not running")
        pid = child.process.pid
        child.process.kill()
        child.process.wait(_KILL_TIMEOUT_S)
        child.close()
        return pid

    def restart(self, name: str) -> None:
        self._children[name].start(self._clock())

    def pids(self) -> dict[str, int]:
        return {n: c.process.pid for n, c in self._children.items() if c.process is not None}

    def stop(self, grace_s: float, hurry: threading.Event | None = None) -> None:
        """SIGTERM the workers, wait for all of them, then those that serve them.

        SIGKILL for what is still there after `grace_s`, or at once in a hurry.
        """
        for serves in (False, True):
            group = [c for c in self._children.values() if c.spec.serves is serves]
            for child in group:
                child.signal(signal.SIGTERM)
            deadline = self._clock() + grace_s
            for child in group:
                self._wait(child, deadline, hurry)
        self._children.clear()

    def _wait(self, child: _Child, deadline: float, hurry: threading.Event | None) -> None:
        while child.process is not None and child.reap() is None:
            if self._clock() > deadline or (hurry is not None and hurry.is_set()):
                self._say(f"{child.spec.name} does not stop in time and is killed.")
                child.signal(signal.SIGKILL)
                child.process.wait(_KILL_TIMEOUT_S)
            time.sleep(_TICK_S)


class _Child:
    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.due_at = 0.0
        self._deaths = 0
        self._started_at = 0.0

    def start(self, now: float) -> None:
        self._started_at = now
        with nullcontext(_STDERR) if self.spec.log is None else self.spec.log.open("ab") as out:
            # A session of its own: Ctrl-C reaches us only, and we stop the others in order.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streams.cli.tied", *self.spec.argv],
                env={**os.environ, **self.spec.env},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def reap(self) -> int | None:
        """The exit code, once, of a process that has ended."""
        if self.process is None:
            return None
        code = self.process.poll()
        if code is not None:
            self.close()
        return code

    def died(self, now: float, code: int) -> float:
        self._deaths = 1 if now - self._started_at >= HEALTHY_S else self._deaths + 1
        wait_s = restart_wait_s(self._deaths, code)
        self.due_at = now + wait_s
        return wait_s

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None


def how(code: int) -> str:
    """An exit code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """`stop` is set by the first SIGINT or SIGTERM, `hurry` by the second."""

    stop: threading.Event
    hurry: threading.Event


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into events for the block, so that the stop happens in order."""
    request = StopRequest(threading.Event(), threading.Event())

    def on_signal(number: int, frame: FrameType | None) -> None:
        if request.stop.is_set():
            request.hurry.set()
        request.stop.set()

    before: Sequence[tuple[int, object]] = [
        (number, signal.signal(number, on_signal)) for number in (signal.SIGINT, signal.SIGTERM)
    ]
    try:
        yield request
    finally:
        for number, handler in before:
            signal.signal(number, handler)  # type: ignore[arg-type]
