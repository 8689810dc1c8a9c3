"""Topics: what the cluster says of them, creating and changing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from streams.config import Settings
from streams.kafka.faults import ADMIN_TIMEOUT_S, blame


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the cluster says of a topic; the UUID tells it from a namesake made later."""

    name: str
    topic_id: UUID
    partitions: int


def describe_topics(
    settings: Settings, admin: AdminClient, names: Iterable[str]
) -> dict[str, TopicFacts]:
    """Facts of those of `names` that exist. Raises `BadWorld` when the cluster does not answer."""
    wanted = list(names)
    if not wanted:
        return {}
    facts: dict[str, TopicFacts] = {}
    with blame(settings, "describing topics"):
        futures = admin.describe_topics(TopicCollection(wanted), request_timeout=ADMIN_TIMEOUT_S)
        for name, future in futures.items():
            try:
                found = future.result(ADMIN_TIMEOUT_S)
            except KafkaException as e:
                if e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            facts[name] = TopicFacts(name, _uuid(found.topic_id), len(found.partitions))
    return facts


def topic_names(settings: Settings, admin: AdminClient) -> list[str]:
    """Names of all topics of the cluster, sorted."""
    with blame(settings, "listing topics"):
        return sorted(admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics)


def _uuid(topic_id: Any) -> UUID:
    high = topic_id.get_most_significant_bits() & (2**64 - 1)
    low = topic_id.get_least_significant_bits() & (2**64 - 1)
    return UUID(int=high << 64 | low)


def topic_config(settings: Settings, admin: AdminClient, name: str) -> dict[str, str]:
    """All settings of an existing topic as the broker spells them, defaults included."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    with blame(settings, f"reading the settings of topic {name}"):
        futures = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)
        entries = futures[resource].result(ADMIN_TIMEOUT_S)
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}


def create_topic(settings: Settings, admin: AdminClient, topic: NewTopic) -> None:
    """Create a topic; one that somebody else created meanwhile is left as it is."""
    with blame(settings, f"creating topic {topic.topic}"):
        futures = admin.create_topics([topic], request_timeout=ADMIN_TIMEOUT_S)
        try:
            futures[topic.topic].result(ADMIN_TIMEOUT_S)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def change_topic_config(
    settings: Settings, admin: AdminClient, name: str, changes: Mapping[str, str]
) -> None:
    """Set the given settings of a topic and leave the others alone."""
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in changes.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    with blame(settings, f"changing the settings of topic {name}"):
        futures = admin.incremental_alter_configs([resource], request_timeout=ADMIN_TIMEOUT_S)
        futures[resource].result(ADMIN_TIMEOUT_S)


def delete_topics(settings: Settings, admin: AdminClient, names: Iterable[str]) -> None:
    """Delete topics and all their records; those that are gone already are passed over."""
    wanted = list(names)
    if not wanted:
        return
    with blame(settings, "deleting topics"):
        for future in admin.delete_topics(wanted, request_timeout=ADMIN_TIMEOUT_S).values():
            try:
                future.result(ADMIN_TIMEOUT_S)
            except KafkaException as e:
                if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
