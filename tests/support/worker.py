"""A worker as a process of its own, as `handoff worker` starts it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from streams.config import Settings
from tests.support import forked

_ALIASES = {"kafka_bootstrap_servers": "KAFKA_BOOTSTRAP_SERVERS", "database_url": "DATABASE_URL"}
#: Generous: only a worker that hangs reaches it.
_END_TIMEOUT_S = 60.0


def environment(settings: Settings, **more: str) -> dict[str, str]:
    """The environment that gives a child process exactly `settings`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HANDOFF_", "OTEL_"))}
    own = {
        _ALIASES.get(name, f"HANDOFF_{name.upper()}"): str(value)
        for name, value in settings.model_dump().items()
        if value is not None
    }
    return {**inherited, **own, **more}


class Worker:
    """A running worker; its log is a file. `expected_to_run` is False once a test has ended it, or
    waits for its end."""

    def __init__(
        self, settings: Settings, log: Path, *stages: str, app: str, variables: dict[str, str]
    ) -> None:
        self.slot = settings.slot
        self.expected_to_run = True
        self._log = log
        with log.open("wb") as out:
            self.process = forked.start(
                *("streams.cli", "worker", *stages, "--app", app),
                env=environment(settings, **variables),
                out=out.fileno(),
                err=out.fileno(),
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone. Fails if it had ended by itself before."""
        assert self.running, f"the worker ended before it could be killed:\n{self.log[-4000:]}"
        self.expected_to_run = False
        self.process.kill()
        self.process.wait(_END_TIMEOUT_S)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait until the process ends by itself; its exit code."""
        self.expected_to_run = False
        try:
            return self.process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker does not end:\n{self.log[-4000:]}") from None

    def clean_up(self) -> None:
        if self.running:
            self.process.kill()
        self.process.wait(_END_TIMEOUT_S)


def killed(worker: Worker) -> None:
    """Wait until it has killed itself, at the crash point that it was given."""
    assert worker.ended() == -signal.SIGKILL, worker.log[-4000:]
