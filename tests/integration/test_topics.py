"""Topics and group offsets on a real broker: what is declared is what is there, and stays."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from pydantic import BaseModel

from streams import Context, Flow, stage, topics
from streams.config import Settings
from streams.kafka import (
    AdminClient,
    NewTopic,
    TopicFacts,
    admin_client,
    committed_offsets,
    create_topic,
    delete_topics,
    describe_topics,
    end_offsets,
    idempotent_producer,
    seed_offsets,
    topic_config,
)
from streams.offsets import decode_map, encode_map

pytestmark = pytest.mark.services


class Note(BaseModel):
    number: int


@stage("read", emits="write")
def read(note: Note, job: Context) -> Note:
    return note


@stage("write", emits="results")
def write(note: Note, job: Context) -> Note:
    return note


FLOW = Flow("notes", (read, write), sinks=("results",))


def create(settings: Settings, admin: AdminClient, topic: NewTopic) -> None:
    """Returns once it is seen, too, which a busy broker takes a moment for."""
    create_topic(settings, admin, topic)
    deadline = time.monotonic() + 60
    while not describe_topics(settings, admin, [topic.topic]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def admin(settings: Settings) -> AdminClient:
    return admin_client(settings)


def facts(settings: Settings, admin: AdminClient, name: str) -> TopicFacts:
    return describe_topics(settings, admin, [settings.prefix + name])[settings.prefix + name]


def test_a_plan_changes_nothing(settings: Settings, admin: AdminClient) -> None:
    plan = topics.plan(FLOW, settings)
    assert [s.name.removeprefix(settings.prefix) for s in plan.create] == [
        "notes.read",
        "notes.read.dlq",
        "notes.write",
        "notes.write.dlq",
        "notes.results",
        "timers",
        "control",
        "job-state",
    ]
    assert describe_topics(settings, admin, [s.name for s in plan.create]) == {}


def test_after_apply_nothing_is_left_to_do(settings: Settings) -> None:
    topics.apply(FLOW, settings)
    assert topics.plan(FLOW, settings).empty
    assert topics.apply(FLOW, settings).empty


def test_topics_have_what_was_declared(settings: Settings, admin: AdminClient) -> None:
    topics.apply(FLOW, settings)
    handed = topic_config(settings, admin, settings.prefix + "notes.read")
    assert handed["cleanup.policy"] == "delete"
    assert handed["retention.ms"] == str(settings.retention_ms)
    dead = topic_config(settings, admin, settings.prefix + "notes.read.dlq")
    assert dead["retention.ms"] == "-1"
    assert int(dead["max.message.bytes"]) > int(handed["max.message.bytes"])
    state = topic_config(settings, admin, settings.prefix + "job-state")
    assert state["cleanup.policy"] == "compact"
    assert int(state["min.compaction.lag.ms"]) >= settings.retention_ms
    assert facts(settings, admin, "notes.read").partitions == settings.partitions
    control = topic_config(settings, admin, settings.prefix + "control")
    assert control["cleanup.policy"] == "compact"
    assert facts(settings, admin, "control").partitions == 1


def test_groups_start_at_the_first_record_with_a_map(
    settings: Settings, admin: AdminClient
) -> None:
    topics.apply(FLOW, settings)
    topic = facts(settings, admin, "notes.read")
    committed = committed_offsets(settings, topic.name, topic)
    assert sorted(committed) == list(range(settings.partitions))
    for tp in committed.values():
        assert tp.offset == 0
        ranges = decode_map(tp.metadata, topic_id=topic.topic_id, committed=0, where="here")
        assert ranges == []


def test_offsets_that_are_there_are_kept(settings: Settings, admin: AdminClient) -> None:
    topics.apply(FLOW, settings)
    topic = facts(settings, admin, "notes.read")
    seed_offsets(settings, admin, topic.name, topic, {1: (7, encode_map(topic.topic_id, 7, []))})
    topics.apply(FLOW, settings)
    assert committed_offsets(settings, topic.name, topic)[1].offset == 7


def test_offsets_that_a_person_reset_are_kept(settings: Settings, admin: AdminClient) -> None:
    topics.apply(FLOW, settings)
    topic = facts(settings, admin, "notes.read")
    seed_offsets(settings, admin, topic.name, topic, {0: (0, "")})
    assert topics.plan(FLOW, settings).empty


def test_a_drifted_setting_is_put_back_and_others_are_left_alone(
    settings: Settings, admin: AdminClient
) -> None:
    name = settings.prefix + "notes.read"
    own = {"retention.ms": "60000", "segment.ms": "3600000"}
    create(settings, admin, NewTopic(name, settings.partitions, 1, config=own))
    found = topics.apply(FLOW, settings)
    changes = {(c.key, c.found, c.wanted) for c in found.change}
    assert ("retention.ms", "60000", str(settings.retention_ms)) in changes
    after = topic_config(settings, admin, name)
    assert after["retention.ms"] == str(settings.retention_ms)
    assert after["segment.ms"] == "3600000"
    assert topics.plan(FLOW, settings).empty


def test_a_partition_count_that_differs_is_said_and_kept(
    settings: Settings, admin: AdminClient
) -> None:
    name = settings.prefix + "notes.read"
    create(settings, admin, NewTopic(name, settings.partitions + 2, 1))
    topics.apply(FLOW, settings)
    plan = topics.plan(FLOW, settings)
    assert len(plan.fixed) == 1
    assert f"{name} has {settings.partitions + 2} partitions" in plan.fixed[0]
    topic = facts(settings, admin, "notes.read")
    assert topic.partitions == settings.partitions + 2
    assert len(committed_offsets(settings, name, topic)) == settings.partitions + 2


def test_offsets_of_a_deleted_topic_are_reported_and_reset_only_if_told_to(
    settings: Settings, admin: AdminClient
) -> None:
    topics.apply(FLOW, settings)
    topic = facts(settings, admin, "notes.read")
    producer = idempotent_producer(settings)
    for _ in range(20):
        producer.produce(topic.name, b"{}", partition=2)
    assert producer.flush(30) == 0
    foreign = uuid4()
    seed_offsets(settings, admin, topic.name, topic, {2: (9, encode_map(foreign, 9, []))})
    plan = topics.plan(FLOW, settings)
    assert [(m.group, m.partition) for m in plan.misfits] == [(topic.name, 2)]
    assert str(foreign) in plan.misfits[0].reason
    topics.apply(FLOW, settings)
    assert committed_offsets(settings, topic.name, topic)[2].offset == 9
    topics.apply(FLOW, settings, reseed=True)
    assert committed_offsets(settings, topic.name, topic)[2].offset == 0
    assert end_offsets(settings, admin, topic)[2] == 20
    assert topics.plan(FLOW, settings).empty


def test_a_topic_that_was_deleted_is_made_again_and_seeded(
    settings: Settings, admin: AdminClient
) -> None:
    topics.apply(FLOW, settings)
    before = facts(settings, admin, "notes.write")
    delete_topics(settings, admin, [before.name])
    topics.apply(FLOW, settings, reseed=True)
    after = facts(settings, admin, "notes.write")
    assert after.topic_id != before.topic_id
    committed = committed_offsets(settings, after.name, after)
    for tp in committed.values():
        assert decode_map(tp.metadata, topic_id=after.topic_id, committed=0, where="x") == []
    assert len(committed) == after.partitions
