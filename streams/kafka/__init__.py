"""Kafka: clients, topics, offsets, faults.

The sole importer of confluent_kafka; other modules take the driver's names from here.
"""

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from streams.kafka.clients import (
    Record,
    admin_client,
    group_consumer,
    idempotent_producer,
    known_end,
    pull,
    reading_consumer,
    transactional_producer,
)
from streams.kafka.cluster import cluster_answers, meet
from streams.kafka.faults import WORLD, blame, fenced
from streams.kafka.following import follow
from streams.kafka.groups import GroupFacts, Member, describe_group, describe_settled_group
from streams.kafka.offsets import (
    COMMITTED_TIMEOUT_S,
    committed_offsets,
    end_offsets,
    first_records,
    high_watermarks,
    low_watermarks,
    offsets_since,
    seed_offsets,
)
from streams.kafka.partitioner import partition_of
from streams.kafka.reading import Place, Reading
from streams.kafka.topics import (
    TopicFacts,
    change_topic_config,
    create_topic,
    delete_topics,
    describe_topics,
    topic_config,
    topic_names,
)

__all__ = [
    "COMMITTED_TIMEOUT_S",
    "OFFSET_BEGINNING",
    "OFFSET_INVALID",
    "WORLD",
    "AdminClient",
    "Consumer",
    "GroupFacts",
    "KafkaError",
    "KafkaException",
    "Member",
    "Message",
    "NewTopic",
    "Place",
    "Producer",
    "Reading",
    "Record",
    "TopicFacts",
    "TopicPartition",
    "admin_client",
    "blame",
    "change_topic_config",
    "cluster_answers",
    "committed_offsets",
    "create_topic",
    "delete_topics",
    "describe_group",
    "describe_settled_group",
    "describe_topics",
    "end_offsets",
    "fenced",
    "first_records",
    "follow",
    "group_consumer",
    "high_watermarks",
    "idempotent_producer",
    "known_end",
    "low_watermarks",
    "meet",
    "offsets_since",
    "partition_of",
    "pull",
    "reading_consumer",
    "seed_offsets",
    "topic_config",
    "topic_names",
    "transactional_producer",
]
