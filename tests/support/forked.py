"""Python processes that need not import what they run: each is forked from one that has.

Importing a worker takes a second and a half of CPU, and tests start hundreds of them. The first
`start` of a test process starts a mother, which imports `handoff` with all its commands and has no
other thread; `start` makes it fork, and the child is what `python -m module args…` would be: its
own environment, arguments, files and signals, run as `__main__`, ended by the interpreter's own
exit. That a worker can also be started from nothing is seen where `handoff up` and the demo are.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from tempfile import TemporaryFile
from typing import Any

_REPOSITORY = Path(__file__).parents[2]
#: Length of a request that follows; a process id, or a status as `waitpid` gives it.
_NUMBER = struct.Struct("=i")
#: Generous: only a process that hangs reaches it.
_RUN_TIMEOUT_S = 120.0


class Forked:
    """A running child of the mother, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code; minus the signal that ended it; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended. Raises `subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select([self._status], [], [], timeout)[0]:
            with self._lock:  # one thread may wait while another looks
                if self.returncode is None:
                    said = os.read(self._status, _NUMBER.size)
                    assert said, "the mother of the test's processes has ended"
                    self.returncode = os.waitstatus_to_exitcode(_NUMBER.unpack(said)[0])
        return self.returncode

    def __del__(self) -> None:
        os.close(self._status)

    def send_signal(self, number: int) -> None:
        """To a process that has ended: nothing."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Completed:
    """A process that has ended, as `subprocess.run(…, capture_output=True, text=True)` gives it."""

    returncode: int
    stdout: str
    stderr: str


def start(module: str, *args: str, env: Mapping[str, str], out: int = 1, err: int = 2) -> Forked:
    """`python -m module args…` in the repository's folder, with exactly `env`; `out` and `err` are
    open files of ours. Its stdin is empty."""
    return _the_mother().fork([module, *args], env, out, err)


def run(module: str, *args: str, env: Mapping[str, str]) -> Completed:
    """The same until it has ended; kills one that hangs."""
    with TemporaryFile() as out, TemporaryFile() as err:
        child = start(module, *args, env=env, out=out.fileno(), err=err.fileno())
        try:
            code = child.wait(_RUN_TIMEOUT_S)
        finally:
            child.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return Completed(code, *texts)


# -- the side of the tests -------------------------------------------------------------------------


class _Mother:
    def __init__(self) -> None:
        ours, hers = socket.socketpair()
        with hers:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked"],
                env={
                    k: v for k, v in os.environ.items() if not k.startswith(("HANDOFF_", "OTEL_"))
                },
                cwd=_REPOSITORY,
                stdin=hers,
                stdout=subprocess.DEVNULL,
            )
        self._control = ours
        self._lock = threading.Lock()
        atexit.register(self._end)

    def fork(self, argv: list[str], env: Mapping[str, str], out: int, err: int) -> Forked:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        asked = json.dumps({"argv": argv, "env": dict(env), "files": limit}).encode()
        status, told = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._control, [_NUMBER.pack(len(asked))], [out, err, told])
                self._control.sendall(asked)
                pid = self._control.recv(_NUMBER.size, socket.MSG_WAITALL)
        finally:
            os.close(told)
        assert pid, "the mother of the test's processes has ended; its stderr says why"
        return Forked(_NUMBER.unpack(pid)[0], status)

    def _end(self) -> None:
        self._control.close()
        self._process.wait()


_mother: _Mother | None = None
_mother_lock = threading.Lock()


def _the_mother() -> _Mother:
    global _mother  # noqa: PLW0603 - one per process by design
    with _mother_lock:
        if _mother is None:
            _mother = _Mother()
        return _mother


# -- the side of the mother ------------------------------------------------------------------------


def _import_all() -> None:
    import typer

    import streams.runtime.worker  # noqa: F401
    from streams import cli

    commands: Any = typer.main.get_command(cli.app)
    for name in commands.list_commands(None):
        commands.get_command(None, name)
    assert threading.active_count() == 1, "a fork would lack the other threads"
    # Children share the memory for as long as nobody counts references in it.
    gc.collect()
    gc.freeze()


def _serve() -> dict[str, Any] | None:
    """Fork for every request. Returns the request in each child, and None in the mother once the
    test process is gone; what still runs then is killed."""
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    running: dict[int, int] = {}

    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                told = running.pop(ended[0])
                with suppress(BrokenPipeError):
                    os.write(told, _NUMBER.pack(ended[1]))
                os.close(told)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests decide what Ctrl-C ends
    signal.signal(signal.SIGCHLD, reap)
    while True:
        length, files, _, _ = socket.recv_fds(control, _NUMBER.size, 3)
        if not length:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return None
        said = control.recv(_NUMBER.unpack(length)[0], socket.MSG_WAITALL)
        # A child must be known before it is reaped.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if (pid := os.fork()) == 0:
            for fd in (control.detach(), *running.values(), files[2]):
                os.close(fd)
            for number, fd in enumerate(files[:2], start=1):
                os.dup2(fd, number)
                os.close(fd)
            request: dict[str, Any] = json.loads(said)
            return request
        running[pid] = files[2]
        os.close(files[0])
        os.close(files[1])
        control.sendall(_NUMBER.pack(pid))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _become(request: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["files"]))
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _import_all()
    if (_request := _serve()) is not None:
        _become(_request)
