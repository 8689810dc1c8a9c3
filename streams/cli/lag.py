"""How far the projection is behind `job-state`."""

from __future__ import annotations

from streams.config import Settings
from streams.kafka import AdminClient, describe_topics, end_offsets, low_watermarks
from streams.postgres import SyncConn, load_queries

SQL = load_queries("streams.cli")


def projection_lag(settings: Settings, admin: AdminClient, conn: SyncConn) -> int | None:
    """Offsets between the projection and the last stable offset; None if there is no topic.

    0 says that `jobs` shows every step that was committed when this was called.
    """
    name = settings.names.job_state_topic
    topic = describe_topics(settings, admin, [name]).get(name)
    if topic is None:
        return None
    low = low_watermarks(settings, admin, topic)
    ends = end_offsets(settings, admin, topic)
    rows = conn.execute(SQL["projection_positions"], {"topic_id": topic.topic_id}).fetchall()
    at: dict[int, int] = {row["partition"]: row["next_offset"] for row in rows}
    return sum(max(0, end - max(at.get(p, 0), low[p])) for p, end in ends.items())
