"""The demo as a user runs it: it adds up although its worker is killed, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psycopg
import pytest

from streams.cli.prepare import environment
from streams.config import Settings
from streams.kafka import admin_client

pytestmark = pytest.mark.services

#: Some seconds of work: half of it must still be there when the half is seen to be done.
COUNT = 2_000
TIMEOUT_S = 600


def leftovers(settings: Settings) -> tuple[list[str], list[str]]:
    """Topics and databases that a demo on these services made."""
    topics = admin_client(settings).list_topics(timeout=30).topics
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'demo@_%' ESCAPE '@'"
        )
        return (
            [name for name in topics if name.startswith(f"{settings.prefix}demo_")],
            [row[0] for row in rows],
        )


def test_the_demo_adds_up_although_its_worker_is_killed(settings: Settings) -> None:
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "streams.cli", "demo", "-o", "json"),
            *("--kill", "1", "--count", str(COUNT)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, **environment(settings)},
    )
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout)
    assert tally["submitted"] == COUNT == tally["done"] + tally["failed"]
    assert tally["desk"]["effects"] == tally["acting"] == tally["settled"] > 0
    assert tally["doubles"] == 0
    assert tally["audit"].endswith("nothing lost, nothing twice, nothing without a cause")
    (kill,) = tally["kills"]
    assert kill["in_flight"] > 0
    assert [hop["hop"]["stage"] for hop in tally["trace"]["hops"]] == ["classify", "enrich", "act"]
    assert "SIGKILL 1" in done.stderr
    assert leftovers(settings) == ([], [])
