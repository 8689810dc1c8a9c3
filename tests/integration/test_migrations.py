"""Migrations on a real Postgres: in order, once, whole, and never changed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.postgres import connect
from streams.state.migrate import Migration, ensure_database, migrate, migrations, pending

pytestmark = pytest.mark.services

STEPS = [
    Migration("0001_one", "CREATE TABLE one (n integer); INSERT INTO one VALUES (1);"),
    Migration("0002_two", "ALTER TABLE one ADD COLUMN m integer; INSERT INTO one VALUES (2, 2);"),
]


@pytest.fixture
def absent(settings: Settings) -> Iterator[Settings]:
    """Settings for a database that does not exist, on the server of the tests."""
    name = f"absent_{uuid4().hex}"
    yield settings.model_copy(
        update={"database_url": make_conninfo(settings.database_url, dbname=name)}
    )
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def test_a_missing_database_is_created_once_and_migrated(absent: Settings) -> None:
    with pytest.raises(BadWorld, match="does not exist"):
        migrate(absent)
    assert ensure_database(absent)
    assert not ensure_database(absent)
    names = [m.name for m in migrations()]
    assert names[0] == "0001_initial"
    assert names == sorted(names)
    assert pending(absent) == names
    assert migrate(absent) == names
    assert pending(absent) == []
    assert migrate(absent) == []


def test_a_role_that_may_not_create_the_database_is_told_what_to_ask_for(
    absent: Settings, settings: Settings
) -> None:
    role = f"poor_{uuid4().hex}"
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'poor'")
        try:
            url = make_conninfo(absent.database_url, user=role, password="poor")
            with pytest.raises(BadSetup, match=r"may not create it.*CREATE DATABASE absent_"):
                ensure_database(absent.model_copy(update={"database_url": url}))
        finally:
            conn.execute(f"DROP ROLE {role}")


def test_several_processes_at_once_apply_each_migration_once(absent: Settings) -> None:
    with ThreadPoolExecutor(4) as threads:
        created = list(threads.map(lambda _: ensure_database(absent), range(4)))
        applied = list(threads.map(lambda _: migrate(absent, STEPS), range(4)))
    assert created.count(True) == 1
    assert sorted(name for names in applied for name in names) == ["0001_one", "0002_two"]
    with connect(absent) as conn:
        assert [tuple(r.values()) for r in conn.execute("SELECT * FROM one ORDER BY n")] == [
            (1, None),
            (2, 2),
        ]


def test_a_migration_that_was_changed_afterwards_is_refused(absent: Settings) -> None:
    ensure_database(absent)
    migrate(absent, STEPS)
    changed = [replace(STEPS[0], sql=STEPS[0].sql + " -- more"), STEPS[1]]
    for refuse in (migrate, pending):
        with pytest.raises(BadSetup, match=r"Migration 0001_one was changed after it was applied"):
            refuse(absent, changed)


def test_a_migration_that_fails_leaves_nothing_of_itself(absent: Settings) -> None:
    ensure_database(absent)
    bad = Migration("0002_bad", "CREATE TABLE two (n integer); SELECT 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(absent, [STEPS[0], bad])
    assert pending(absent, [STEPS[0], bad]) == ["0002_bad"]
    with connect(absent) as conn:
        assert conn.execute("SELECT to_regclass('two') AS t").fetchone() == {"t": None}


def test_a_database_that_does_not_store_utf_8_is_refused(
    absent: Settings, settings: Settings
) -> None:
    name = conninfo_to_dict(absent.database_url)["dbname"]
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(BadSetup, match="does not store UTF-8"):
        migrate(absent)
