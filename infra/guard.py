"""Run one service process that cannot outlive the program that started it.

`python guard.py OPTIONS -- COMMAND…`, standard library only, started by `infra.process`. The guard
is the service's parent; the program holds the other end of the guard's stdin:

    b"s"  stop the service: its stop signal, then SIGKILL after the grace
    b"k"  SIGKILL the service
    end of file: the program is gone, by whatever means; stop the service, remove `--remove`

Why a guard and not PR_SET_PDEATHSIG alone: that signal is tied to the parent's *thread*, so a
service started from a pool would die with its pool; it is cleared when the child changes its user,
and other systems lack it. A pipe ends with the process that holds it, on SIGKILL too. The signal is
still set, from the guard's only thread, for the case that somebody kills the guard.

The first line on stdout is the service's pid. Exit code: the service's, 128+n for signal n.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
#: As shells say it.
_NOT_EXECUTED = 127


class Guard:
    """One service, from start to end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._stop_signal = signal.Signals[options.stop_signal]
        self._grace_s: float = options.grace
        self._remove: list[Path] = options.remove
        self.orphaned = False
        with Path(options.log).open("ab") as log:
            self._child = subprocess.Popen(
                options.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=options.cwd,
                preexec_fn=_die_with_guard(),  # noqa: PLW1509 - no second thread runs yet
                user=options.uid,
                group=options.gid,
                extra_groups=None if options.uid is None else (),
            )

    @property
    def pid(self) -> int:
        pid: int = self._child.pid
        return pid

    def listen(self) -> None:
        """Obey the program until it is gone."""
        while order := os.read(0, 1):
            if order == b"k":
                self._child.kill()
            else:
                self.stop()
        self.orphaned = True
        self.stop()

    def stop(self) -> None:
        self._child.send_signal(self._stop_signal)
        last_call = threading.Timer(self._grace_s, self._child.kill)
        last_call.daemon = True
        last_call.start()

    def wait(self) -> int:
        code = self._child.wait()
        if self.orphaned:
            self._clean()
        return code if code >= 0 else 128 - code

    def _clean(self) -> None:
        for path in self._remove:
            shutil.rmtree(path, ignore_errors=True)
            # The directory around it goes with the last service that lived there.
            with suppress(OSError):
                path.parent.rmdir()


def _die_with_guard() -> Callable[[], None] | None:
    """What the child does before exec, after its change of user, which would clear the setting."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--cwd", required=True)
    parser.add_argument("--stop-signal", required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--remove", type=Path, action="append", default=[])
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def main() -> None:
    # The program's Ctrl-C is not ours (we have a session of our own); a SIGTERM to the guard is.
    stop_asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop_asked.set())
    options = _parse()
    try:
        guard = Guard(options)
    except OSError as e:
        with Path(options.log).open("a", encoding="utf-8") as log:
            log.write(f"{options.command[0]} cannot be executed: {e}\n")
        sys.exit(_NOT_EXECUTED)
    signal.signal(signal.SIGTERM, lambda *_: guard.stop())
    os.write(1, b"%d\n" % guard.pid)
    threading.Thread(target=guard.listen, daemon=True).start()
    if stop_asked.is_set():
        guard.stop()
    code = guard.wait()
    # Not sys.exit: the listener may sit in a read that nothing ends.
    os._exit(code)


if __name__ == "__main__":
    main()
