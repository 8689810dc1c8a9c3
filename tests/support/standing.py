"""What a command that only reads must leave as it was."""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg

from streams.kafka import admin_client, describe_topics, high_watermarks, low_watermarks
from tests.support.rig import Rig


def standing(rig: Rig) -> dict[str, Any]:
    """Watermarks of all topics of the rig's flow, offsets of its groups, every table."""
    settings, flow = rig.settings, rig.flow
    names = settings.names
    found: dict[str, Any] = {}
    topics = [names.stage_topic(flow.name, s) for s in (*flow.inputs, *flow.sinks)]
    topics += [names.dead_letter_topic(flow.name, s) for s in flow.inputs]
    topics += [names.job_state_topic, names.timers_topic]
    admin = admin_client(settings)
    for name, facts in describe_topics(settings, admin, topics).items():
        low = low_watermarks(settings, admin, facts)
        found[name] = (low, high_watermarks(settings, admin, facts))
    groups = admin.list_consumer_groups().result(30).valid
    found["groups"] = sorted(g.group_id for g in groups if g.group_id.startswith(settings.prefix))
    for name in flow.inputs:
        found[f"group {name}"] = rig.committed(name)
    return {**found, **tables(settings.database_url)}


def tables(url: str) -> dict[str, str]:
    """A digest of every table."""
    found = {}
    with psycopg.connect(url, autocommit=True) as conn:
        names = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (name,) in names.fetchall():
            rows = conn.execute(f"SELECT t::text FROM {name} AS t ORDER BY 1".encode()).fetchall()
            content = "\n".join(row[0] for row in rows)
            found[f"table {name}"] = hashlib.sha256(content.encode()).hexdigest()
    return found
