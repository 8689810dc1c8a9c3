"""Kafka and Postgres for as long as a block runs: `with services() as endpoints: …`.

Each is skipped when KAFKA_BOOTSTRAP_SERVERS or DATABASE_URL names a running one. What was started
is gone when the block ends, by return, exception or Ctrl-C, and also when this process is killed.
`python -m infra.services` runs both in the foreground.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from infra.kafka import Kafka
from infra.kafka.jars import jars
from infra.postgres.server import Postgres
from infra.process import Place, ServiceFailed

__all__ = ["Endpoints", "ServiceFailed", "Services", "services"]

_KAFKA: Final = "KAFKA_BOOTSTRAP_SERVERS"
_POSTGRES: Final = "DATABASE_URL"
#: How long the services of a killed process may take to end before theirs is the data.
_LOCK_TIMEOUT_S: Final = 45.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the services are. An address is empty if the service was not asked for."""

    kafka_bootstrap_servers: str
    database_url: str
    #: Of the services started here, by name: `kafka`, `postgres`.
    pids: Mapping[str, int] = field(default_factory=dict)
    logs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead another process here."""
        pairs = {_KAFKA: self.kafka_bootstrap_servers, _POSTGRES: self.database_url}
        return {name: value for name, value in pairs.items() if value}


class Services:
    """Kafka and Postgres started by this process.

    With `data_dir` their data stays and is found again; without, it lies in a temporary directory
    and is removed, except after a failed start, whose logs are kept. `fsync=False` makes Postgres
    faster where nothing has to survive a crash of the machine. `kafka` and `postgres` are None
    where the environment names a running one; both have `kill()` and `start()` for harnesses.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        kafka: bool = True,
        postgres: bool = True,
        fsync: bool = True,
    ) -> None:
        self._data_dir, self._fsync = data_dir, fsync
        self._wanted = (kafka, postgres)
        self._root: Path | None = None
        self._lock_fd: int | None = None
        self.kafka: Kafka | None = None
        self.postgres: Postgres | None = None

    def __enter__(self) -> Services:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def endpoints(self) -> Endpoints:
        kafka, postgres = self.kafka, self.postgres
        running: list[Kafka | Postgres] = [s for s in (kafka, postgres) if s is not None]
        return Endpoints(
            kafka.bootstrap_servers if kafka else os.environ.get(_KAFKA, ""),
            postgres.database_url if postgres else os.environ.get(_POSTGRES, ""),
            {s.name: s.pid for s in running if s.pid is not None},
            {s.name: s.log for s in running},
        )

    def start(self) -> None:
        """Start both at once; return when both serve. Raises `ServiceFailed`; nothing runs then."""
        kafka, postgres = (
            wanted and not os.environ.get(name)
            for wanted, name in zip(self._wanted, (_KAFKA, _POSTGRES), strict=True)
        )
        if not (kafka or postgres):
            return
        if kafka:
            jars()  # may take minutes, once, and says so; nothing is started before
        root, cancelled = self._open(), threading.Event()
        places = {
            name: Place(root / name, self._data_dir is None, self._lock_fd, cancelled)
            for name in (Kafka.name, Postgres.name)
        }
        try:
            self.kafka = Kafka(places[Kafka.name]) if kafka else None
            self.postgres = Postgres(places[Postgres.name], fsync=self._fsync) if postgres else None
            self._start_all(cancelled)
        except BaseException as e:
            self._stop_all()
            # Logs of a start that failed are kept; one that was interrupted has nothing to tell.
            self._close(remove=not isinstance(e, Exception))
            raise

    def stop(self) -> None:
        """Stop what `start` started; returns once nothing of it runs. Safe to repeat."""
        self._stop_all()
        self._close(remove=True)

    def _running(self) -> list[Kafka | Postgres]:
        return [s for s in (self.kafka, self.postgres) if s is not None]

    def _start_all(self, cancelled: threading.Event) -> None:
        with ThreadPoolExecutor(2, "start-service") as pool:
            starts = [pool.submit(s.start) for s in self._running()]
            try:
                for start in wait(starts, return_when=FIRST_EXCEPTION).done:
                    start.result()
            except BaseException:
                cancelled.set()
                raise

    def _stop_all(self) -> None:
        with ThreadPoolExecutor(2, "stop-service") as pool:
            for stop in [pool.submit(s.stop) for s in self._running()]:
                stop.result()

    def _open(self) -> Path:
        """Make the directory, and lock it if it is not ours alone anyway."""
        if self._data_dir is None:
            self._root = Path(tempfile.mkdtemp(prefix="handoff-"))
            # Passable for the user that Postgres runs as when we are root.
            self._root.chmod(0o711)
            return self._root
        self._root = root = self._data_dir.absolute()
        root.mkdir(parents=True, exist_ok=True)
        # Guards inherit this descriptor: the lock lasts until the last service has ended.
        self._lock_fd = fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not _locked(fd):
            if time.monotonic() > deadline:
                self._close(remove=False)
                raise ServiceFailed(
                    f"The services of another process run over {root}. Stop it, or choose another "
                    "data directory."
                )
            time.sleep(0.1)
        return root

    def _close(self, *, remove: bool) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        if remove and self._data_dir is None and self._root is not None:
            for path in (*(s.place.home for s in self._running()), self._root):
                shutil.rmtree(path, ignore_errors=True)
        self.kafka = self.postgres = self._root = None


def _locked(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextmanager
def services(
    data_dir: Path | None = None,
    *,
    kafka: bool = True,
    postgres: bool = True,
    fsync: bool = True,
) -> Iterator[Endpoints]:
    """`Services` for those who only want to know where they are."""
    with Services(data_dir, kafka=kafka, postgres=postgres, fsync=fsync) as running:
        yield running.endpoints


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both in the foreground until Ctrl-C or SIGTERM; print their environment lines."""
    parser = argparse.ArgumentParser(prog="python -m infra.services", description=main.__doc__)
    parser.add_argument("--data-dir", type=Path, help="keep data here; else it is thrown away")
    options = parser.parse_args(arguments)
    # SIGTERM as Ctrl-C: stopped in order, with the data removed, and not by our guards.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with services(options.data_dir) as endpoints:
            for name, value in endpoints.environment.items():
                print(f"{name}={value}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return
    except ServiceFailed as e:
        sys.exit(f"error: {e.message}")


if __name__ == "__main__":
    main()
