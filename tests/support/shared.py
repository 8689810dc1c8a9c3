"""One Kafka and one Postgres for all processes of a test run: the first that asks starts them.

Prefixes and databases keep the tests apart, so a second broker would bring nothing but its start
and its warming up.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from infra.services import Endpoints, services


@contextmanager
def shared_services(folder: Path) -> Iterator[Endpoints]:
    """The services of the processes that name the same `folder`, for as long as the block runs.

    Who started them ends them, once nobody else is in such a block; they also end with it when it
    is killed.
    """
    told = folder / "endpoints.json"
    with (folder / "users").open("w") as users, (folder / "start").open("w") as start:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(start, fcntl.LOCK_EX)
        if told.exists():
            fcntl.flock(start, fcntl.LOCK_UN)
            yield Endpoints(**json.loads(told.read_text()))
            return
        # fsync is off: tests kill processes, not the machine, and the data is thrown away.
        with services(fsync=False) as running:
            known = asdict(running)
            del known["logs"]
            told.write_text(json.dumps(known))
            fcntl.flock(start, fcntl.LOCK_UN)
            try:
                yield running
            finally:
                fcntl.flock(users, fcntl.LOCK_EX)
                told.unlink()
