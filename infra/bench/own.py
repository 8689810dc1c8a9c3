"""handoff alone on the bench's services: topics and database made, workers as process groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from infra.bench.processes import PeerGroup
from infra.bench.roster import temporary_database
from infra.bench.topics import PARTITIONS, Topics
from infra.services import Endpoints


class Own:
    """What `handoff worker` needs to run `app`, and how to start one."""

    def __init__(self, topics: Topics, database_url: str, app: str, directory: Path) -> None:
        self.topics, self.database_url = topics, database_url
        self._app, self._directory = app, directory
        self.env: dict[str, str] = {
            "KAFKA_BOOTSTRAP_SERVERS": topics.bootstrap,
            "DATABASE_URL": database_url,
            "HANDOFF_PREFIX": topics.prefix,
            "HANDOFF_PARTITIONS": str(PARTITIONS),
        }

    def do(self, *command: str) -> None:
        """Run a command of handoff. Raises `RuntimeError` with what it said if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "streams.cli", *command],
            check=False,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise RuntimeError(f"`handoff {' '.join(command)}` failed: {done.stderr[-2000:]}")

    def worker(self, *agents: str, slot: int = 0) -> PeerGroup:
        """Start a worker; end it by `kill`."""
        name = f"{'-'.join(agents)}-{slot}"
        return PeerGroup(
            name,
            [sys.executable, "-m", "streams.cli", "worker", *agents, "--app", self._app],
            {**self.env, "HANDOFF_SLOT": str(slot)},
            self._directory / f"{self.topics.prefix}{name}.log",
        )


@contextmanager
def own(
    at: Endpoints, app: str, directory: Path, env: Mapping[str, str] | None = None
) -> Iterator[Own]:
    """Topics and a database for one measurement; both are dropped afterwards."""
    topics = Topics(at.kafka_bootstrap_servers, f"bench-{uuid4().hex[:8]}-")
    name = topics.prefix.replace("-", "_").strip("_")
    with temporary_database(at.database_url, name) as database_url:
        made = Own(topics, database_url, app, directory)
        made.env.update(env or {})
        try:
            made.do("topics", "apply", "--app", app, "--yes")
            made.do("db", "migrate")
            yield made
        finally:
            topics.drop()
