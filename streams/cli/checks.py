"""What `doctor` and `demo` check: statements, and how far the projection is behind `job-state`."""

from __future__ import annotations

from streams.config import Settings
from streams.kafka import AdminClient, describe_topics, end_offsets, low_watermarks
from streams.positions import positions_of
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
    at = positions_of(conn, "projection_offsets", topic.topic_id)
    return sum(max(0, end - max(at.get(p, 0), low[p])) for p, end in ends.items())
