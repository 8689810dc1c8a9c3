"""Postgres is away for a while: what needs it waits, then goes on; nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import (
    assert_all_done_once,
    assert_each_effect_once,
    assert_projection_is_the_fold,
)
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services


@contextmanager
def postgres_away(settings: Settings) -> Iterator[None]:
    """The database refuses connections and ends those that there are, as in a restart."""
    name = str(conninfo_to_dict(settings.database_url)["dbname"])
    server = make_conninfo(settings.database_url, dbname="postgres")
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(allow.format(sql.Identifier(name), sql.Literal(False)))
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        try:
            yield
        finally:
            conn.execute(allow.format(sql.Identifier(name), sql.Literal(True)))


def test_suspects_effects_and_the_projection_wait_for_postgres_and_hand_offs_go_on(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, database_timeout_s=2.0) as rig:
        worker = rig.worker()
        ids = rig.submit([Job(n=n, gate="away", effect="repeatable") for n in range(50)])
        rig.wait(lambda: rig.target.waiting("away") == 50, "jobs stand before their effect")
        with postgres_away(rig.settings):
            plain = [(job_id(n), 1, Job(n=n)) for n in range(1_000, 1_050)]
            rig.hand_off("work", plain)
            rig.wait_results(50)
            # Effects, and suspects: both need Postgres.
            rig.target.open("away")
            late = rig.submit([Job(n=n, effect="repeatable") for n in range(50, 100)])
            rig.wait(lambda: worker.log.count("stage_paused") > 20, "stages say that they wait")
            assert rig.finished() == 50
            assert rig.target.calls == []
        rig.wait_results(150)
        rig.wait_drained()
        assert_each_effect_once(rig, range(100))
        assert len(rig.target.calls) == 100
        assert_projection_is_the_fold(rig)
        assert {r.job for r in rig.records("done")} == {*ids, *late, *(key for key, *_ in plain)}
        assert {s.attempts for s in rig.states()} == {1}, "no attempt was spent on waiting"
        assert worker.stop() == 0


def test_connections_that_die_in_mid_stream_lose_and_double_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64) as rig:
        worker = rig.worker()
        ids = rig.submit([Job(n=n, wait_ms=n % 30, effect="repeatable") for n in range(400)])
        for cut in range(1, 4):
            rig.wait_results(cut * 60)
            with postgres_away(rig.settings):
                assert rig.finished() < 400, "work was in flight at the cut"
        rig.wait_results(400)
        assert_all_done_once(rig, ids)
        assert_each_effect_once(rig, range(400))
        assert_projection_is_the_fold(rig)
        assert worker.stop() == 0
