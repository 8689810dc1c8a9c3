"""Blame: what passes by itself is the world's, what Kafka refuses is ours."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.kafka.faults import blame


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # Seen once, right after a topic was created on a busy machine.
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ],
)
def test_a_cluster_that_changes_leaders_is_the_world_s_fault(code: int) -> None:
    with pytest.raises(BadWorld, match="while looking"), blame(Settings(), "looking"):
        raise KafkaException(KafkaError(code))


def test_a_refusal_is_ours() -> None:
    with pytest.raises(BadSetup, match="while looking"), blame(Settings(), "looking"):
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


def test_no_answer_is_the_world_s_fault() -> None:
    with pytest.raises(BadWorld, match="did not answer in time"), blame(Settings(), "looking"):
        raise TimeoutError
