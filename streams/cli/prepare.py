"""What `up` and `demo` do before workers start: database, schema, topics, group offsets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from streams import topics
from streams.cli.supervise import ChildSpec, Say
from streams.config import Settings
from streams.flow import Flow
from streams.postgres import place
from streams.state.migrate import ensure_database, migrate


def prepare(flow: Flow, settings: Settings, say: Say) -> None:
    """Bring everything to where workers can start. Safe to repeat.

    Raises `BadSetup` or `BadWorld`; partition counts that differ are said and kept.
    """
    if ensure_database(settings):
        say(f"Created database {place(settings.database_url)}.")
    if applied := migrate(settings):
        say(f"Applied migrations: {', '.join(applied)}.")
    plan = topics.apply(flow, settings)
    if plan.create:
        say(f"Created topics: {', '.join(s.name for s in plan.create)}.")
    for sentence in (*plan.fixed, *(m.reason for m in plan.misfits)):
        say(sentence)


def environment(settings: Settings) -> dict[str, str]:
    """What child processes must be told of `settings`; the rest they read as we did."""
    return {
        "KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "DATABASE_URL": settings.database_url,
        "HANDOFF_PREFIX": settings.prefix,
    }


def exports(env: Mapping[str, str]) -> str:
    """What to type in another terminal to speak to the same services."""
    return "export " + shlex.join(f"{key}={value}" for key, value in env.items() if value)


def worker_spec(
    name: str,
    app: str,
    env: Mapping[str, str],
    *stages: str,
    slot: int = 0,
    log: Path | None = None,
) -> ChildSpec:
    """A `handoff worker` as a child process."""
    argv = ("streams.cli", "worker", *stages, "--app", app, "--slot", str(slot))
    return ChildSpec(name, argv, env, log)
