"""Whether the cluster answers at all."""

from __future__ import annotations

from confluent_kafka import Consumer

from streams.config import Settings
from streams.kafka.faults import blame


def cluster_answers(settings: Settings, client: Consumer, timeout_s: float) -> None:
    """Return when a broker has answered. Raises `BadWorld` when none does within `timeout_s`.

    A metadata request, not one of the admin client's: a time-out of those can abort the process
    (librdkafka 2.16, `rd_kafka_admin_response_parse`). By a consumer, since the question must not
    create the topic that it names.
    """
    with blame(settings, "asking whether it is there"):
        client.list_topics(settings.names.job_state_topic, timeout=timeout_s)
