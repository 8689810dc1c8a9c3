"""Whether the cluster answers at all."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from streams.config import Settings
from streams.kafka.faults import blame


def cluster_answers(settings: Settings, admin: AdminClient, timeout_s: float) -> None:
    """Return when a broker has answered. Raises `BadWorld` when none does within `timeout_s`."""
    with blame(settings, "asking whether it is there"):
        admin.describe_cluster(request_timeout=timeout_s).result(2 * timeout_s)
