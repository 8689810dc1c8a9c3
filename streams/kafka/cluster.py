"""Whether the cluster answers at all, and meeting it before the first record."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer

from streams.config import Settings
from streams.kafka.faults import blame

_MEET_S: Final = 1.0


def cluster_answers(settings: Settings, client: Consumer, timeout_s: float) -> None:
    """Return when a broker has answered. Raises `BadWorld` when none does within `timeout_s`.

    A metadata request, not one of the admin client's: a time-out of those can abort the process
    (librdkafka 2.16, `rd_kafka_admin_response_parse`). By a consumer, since the question must not
    create the topic that it names.
    """
    with blame(settings, "asking whether it is there"):
        client.list_topics(settings.names.job_state_topic, timeout=timeout_s)


def meet(producer: Producer, topic: str) -> None:
    """Return when a new producer has a connection, or there is none to be had now.

    Idempotent and transactional producers need an id from a broker. librdkafka (2.16) asks for it
    when nothing is connected yet, and again only after half a second, which is half a second for
    every restart of a worker and every submission. `topic` is one that will be written to: a
    producer's question may create it where the brokers do that.
    """
    with suppress(KafkaException):
        # The first answer may come before the driver's own thread has heard of the connection:
        # of 30 producers 8 then still waited. After a second one none did.
        for _ in range(2):
            producer.list_topics(topic, timeout=_MEET_S)
