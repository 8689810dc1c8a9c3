"""Consumer groups as the broker sees them: who is a member, and who owns which partition."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from streams.config import Settings
from streams.kafka.faults import ADMIN_TIMEOUT_S, blame

#: How long a group may take to hand out its partitions before that is the answer.
_SETTLE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """`instance` is its `group.instance.id`; a static member that died stays one until its session
    has expired."""

    instance: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """`state` as Kafka spells it (`STABLE`, `EMPTY`, …); `owners` by partition of the topic that
    was asked about."""

    state: str
    members: tuple[Member, ...]
    owners: Mapping[int, Member]

    @property
    def settled(self) -> bool:
        """False while partitions are being handed out: who owns what is then not known."""
        return self.state in ("STABLE", "EMPTY", "DEAD")


def describe_group(
    settings: Settings,
    admin: AdminClient,
    group: str,
    topic: str,
    *,
    timeout_s: float = ADMIN_TIMEOUT_S,
) -> GroupFacts:
    """The members of `group` and which of them own partitions of `topic`. A group that nobody ever
    joined has none. Raises `BadWorld`."""
    with blame(settings, f"describing group {group}"):
        futures = admin.describe_consumer_groups([group], request_timeout=timeout_s)
        try:
            found = futures[group].result(timeout_s)
        except KafkaException as e:
            # Older brokers call such a group dead.
            if e.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return GroupFacts("DEAD", (), {})
            raise
    members, owners = [], {}
    for each in found.members:
        member = Member(each.group_instance_id or each.member_id, each.host)
        members.append(member)
        for place in each.assignment.topic_partitions if each.assignment is not None else ():
            if place.topic == topic:
                owners[place.partition] = member
    return GroupFacts(found.state.name, tuple(members), owners)


def describe_settled_group(
    settings: Settings, admin: AdminClient, group: str, topic: str
) -> GroupFacts:
    """The same; waits a little while partitions are handed out."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        found = describe_group(settings, admin, group, topic)
        if found.settled or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
