"""A projector killed with SIGKILL in the middle of a batch has changed nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import psycopg
import pytest

from streams.config import Settings
from streams.postgres import connect, open_pool
from streams.state.fold import StateRecord
from streams.state.projector import Projection, moves_of
from tests.support import forked
from tests.support.folded import verify
from tests.unit.state.records import TOPIC, TOPIC_ID, job_id, record, state

pytestmark = pytest.mark.services

JOBS = 5
MODULE = "tests.integration.test_projection_killed"


def log() -> list[StateRecord]:
    return [record(state(job_id(n), 1), n) for n in range(JOBS)]


async def apply_all(settings: Settings) -> None:
    async with open_pool(settings) as pool:
        projection = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
        await projection.apply(log(), moves_of(log(), await projection.positions()))


def waits_for_a_lock(conn: psycopg.Connection) -> bool:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.parametrize("table", ["projection_offsets", "job_history", "jobs"])
async def test_a_projector_killed_in_the_middle_has_changed_nothing(
    settings: Settings, table: str
) -> None:
    with (
        psycopg.connect(settings.database_url) as gate,
        psycopg.connect(settings.database_url, autocommit=True) as watch,
    ):
        gate.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        child = forked.start(MODULE, settings.database_url, env=os.environ)
        try:
            async with asyncio.timeout(60):
                while not waits_for_a_lock(watch):
                    assert child.poll() is None, "the projector ended before the kill"
                    await asyncio.sleep(0.02)
        finally:
            child.kill()
            child.wait()
        assert child.returncode == -signal.SIGKILL
        gate.rollback()
    # The dead one's backend may still be at work: the row locks make the next one wait for it.
    await apply_all(settings)
    with connect(settings) as conn:
        assert verify(conn, log()).differences == ()
        rows = conn.execute("SELECT count(*) AS n FROM job_history").fetchone()
        assert rows == {"n": JOBS}


if __name__ == "__main__":
    asyncio.run(apply_all(Settings(database_url=sys.argv[1])))
