"""A prefix and a database of their own for a program that measures, removed at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from streams import Flow
from streams.config import Settings, load_settings
from streams.kafka import admin_client, delete_topics, topic_names
from streams.postgres import create_database, drop_database, with_database
from streams.state.migrate import migrate
from tests.support.rig import Rig


@contextmanager
def installation() -> Iterator[Settings]:
    """Settings of the services that the environment names; what was made under them goes."""
    name = f"size_{uuid4().hex[:8]}"
    settings = with_database(load_settings(prefix=f"{name}."), name)
    create_database(settings)
    try:
        migrate(settings)
        yield settings
    finally:
        drop_database(settings)
        with admin_client(settings) as admin:
            ours = [t for t in topic_names(settings, admin) if t.startswith(settings.prefix)]
            delete_topics(settings, admin, ours)


@contextmanager
def rigged(flow: Flow) -> Iterator[Rig]:
    """The same with a rig of `flow` in it."""
    with (
        installation() as settings,
        tempfile.TemporaryDirectory() as folder,
        Rig(settings, Path(folder), flow) as rig,
    ):
        yield rig
