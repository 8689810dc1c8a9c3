"""Fixtures on real services: a broker and a Postgres per run, started when first asked for.

They are started by the project's own code, or skipped where KAFKA_BOOTSTRAP_SERVERS or DATABASE_URL
name running ones. If they cannot be started, the tests that need them fail with the sentence that
says why: a run without services is not a run that passed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from infra.services import Endpoints
from streams.config import Settings
from streams.postgres import drop_database, with_database
from streams.state.migrate import migrate

# The judges' assertions say what they compared, as those of the tests do.
pytest.register_assert_rewrite("tests.support")

NewSettings = Callable[[], Settings]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m "not services"` leaves out every test that would start them."""
    for item in items:
        if "endpoints" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.services)


@pytest.fixture(scope="session")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """Kafka and Postgres of this run."""
    from tests.support.shared import shared_services

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers of the run
    with shared_services(folder) as running:
        yield running


@pytest.fixture(scope="session")
def template(endpoints: Endpoints) -> Iterator[Settings]:
    """A migrated database that each test gets a copy of. Nobody stays connected to it."""
    server = Settings(
        kafka_bootstrap_servers=endpoints.kafka_bootstrap_servers,
        database_url=endpoints.database_url,
    )
    with database(server, f"handoff_template_{uuid4().hex[:8]}", copy_of="template0") as made:
        migrate(made)
        yield made


@pytest.fixture
def new_settings(template: Settings) -> Iterator[NewSettings]:
    """Makes settings with a topic prefix and a migrated database of their own, each time anew.

    Both are dropped after the test.
    """
    original = str(conninfo_to_dict(template.database_url)["dbname"])
    with ExitStack() as stack:

        def make() -> Settings:
            name = f"t{uuid4().hex[:8]}"
            fresh = stack.enter_context(database(template, f"handoff_{name}", copy_of=original))
            stack.callback(delete_topics, template.kafka_bootstrap_servers, f"{name}-")
            return fresh.model_copy(update={"prefix": f"{name}-"})

        yield make


@pytest.fixture
def settings(new_settings: NewSettings) -> Settings:
    """Settings of the services, with a topic prefix and a migrated database for this test alone."""
    return new_settings()


@contextmanager
def database(server: Settings, name: str, *, copy_of: str) -> Iterator[Settings]:
    """A database on the server of `server`, for as long as the block runs."""
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'")
    url = with_database(server, "postgres").database_url
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(create.format(sql.Identifier(name), sql.Identifier(copy_of)))
    made = with_database(server, name)
    try:
        yield made
    finally:
        drop_database(made)


def delete_topics(bootstrap_servers: str, prefix: str) -> None:
    """Hundreds of tests on one broker: what each leaves behind would slow the later ones."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    names = [t for t in admin.list_topics(timeout=30).topics if t.startswith(prefix)]
    if names:
        for deletion in admin.delete_topics(names, operation_timeout=30).values():
            deletion.result()
