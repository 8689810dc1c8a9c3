"""Which of Kafka's errors are the world's fault, which are ours, which say that we are fenced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from streams.config import Settings
from streams.errors import BadSetup, BadWorld

#: How long one administrative request may take.
ADMIN_TIMEOUT_S: Final = 20.0


@contextmanager
def blame(settings: Settings, doing: str) -> Iterator[None]:
    """Turn Kafka's errors into sentences: unreachable is `BadWorld`, refused is `BadSetup`."""
    where = settings.kafka_bootstrap_servers
    try:
        yield
    except TimeoutError as e:
        # The driver's futures, when no broker could be reached at all.
        raise BadWorld(f"Kafka at {where} did not answer in time while {doing}.") from e
    except KafkaException as e:
        error: KafkaError = e.args[0]
        if error.code() in WORLD or error.retriable():
            raise BadWorld(f"Kafka at {where} does not serve while {doing}: {error.str()}.") from e
        raise BadSetup(f"Kafka at {where} refused while {doing}: {error.str()}.") from e


#: Errors that pass by themselves once the cluster serves again.
WORLD: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        # A leader that has not heard of its own election yet, or of its successor's.
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)


def fenced(error: KafkaError) -> bool:
    """Whether a consumer's error says that a twin has taken its place in the group.

    librdkafka tells a static member so by a general fatal error; the cause is in its text only.
    """
    return error.code() == KafkaError.FENCED_INSTANCE_ID or (
        error.code() == KafkaError._FATAL and "fenced" in error.str()
    )
