"""Rebalance callbacks: what they wait for, and what they do not (decision 3, rule 1)."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest

from streams.config import load_settings
from streams.errors import BadSetup, BadWorld
from streams.kafka import KafkaError, KafkaException, TopicFacts, TopicPartition
from streams.offsets import encode_map
from streams.runtime.budget import Budget
from streams.runtime.ownership import Ownership
from streams.runtime.polling import ConsumerBroke
from streams.runtime.puller import Puller
from streams.runtime.tracker import Tracker
from tests.unit.runtime.fakes import TOPIC_ID, make_tracker

PARTITION = TopicPartition("mail.classify", 0)


class FakeConsumer:
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.end = -1001
        self.member = "member 1"

    def committed(self, partitions: list[TopicPartition], _: float) -> list[TopicPartition]:
        metadata = encode_map(TOPIC_ID, 0, [])
        return [TopicPartition(p.topic, p.partition, 0, metadata) for p in partitions]

    def get_watermark_offsets(self, _: TopicPartition, cached: bool) -> tuple[int, int]:
        assert cached, "it asks the broker"
        return (0, self.end)

    def consumer_group_metadata(self) -> str:
        return f"metadata of {self.member}"

    def memberid(self) -> str:
        return self.member

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.asked.append(name)


class OpenTransaction:
    """Holds work of everything until `resolved`."""

    def __init__(self) -> None:
        self.resolved, self.asked, self.away = Event(), Event(), False

    def drain(self, trackers: list[Tracker], timeout_s: float) -> bool:
        return False

    def rescue(self) -> None: ...

    def wait_resolved(self, trackers: list[Tracker], timeout_s: float) -> bool:
        if not trackers:
            return True
        self.asked.set()
        return self.resolved.wait(min(timeout_s, 0.01))


class Setting:
    def __init__(self) -> None:
        self.ownership, self.commits = Ownership(), OpenTransaction()
        self.tracker = make_tracker()
        self.ownership.assign([self.tracker], "metadata of member 1")
        self.consumer: Any = FakeConsumer()
        self.ended: list[Tracker] = []
        self.broken: list[BaseException] = []
        commits: Any = self.commits
        self.puller = Puller(
            load_settings(commit_timeout_s=0.05),
            TopicFacts("mail.classify", TOPIC_ID, 2),
            "mail.classify",
            ownership=self.ownership,
            commits=commits,
            budget=Budget(10, 1_000),
            deliver=lambda _: None,
            ended=self.ended.extend,
            fail=self.broken.append,
        )
        self.puller._joined_as = self.consumer.member

    def in_background(self, callback: Any) -> Thread:
        thread = Thread(target=callback, args=(self.consumer, [PARTITION]), daemon=True)
        thread.start()
        return thread


@pytest.fixture
def setting() -> Iterator[Setting]:
    made = Setting()
    yield made
    made.commits.resolved.set()


def test_a_partition_is_handed_over_when_the_transaction_that_holds_its_work_is_resolved(
    setting: Setting,
) -> None:
    revoking = setting.in_background(setting.puller.on_revoke)
    assert setting.commits.asked.wait(10)
    assert not setting.tracker.live
    assert setting.ended == [setting.tracker]
    assert "incremental_unassign" not in setting.consumer.asked
    setting.commits.resolved.set()
    revoking.join(10)
    assert setting.consumer.asked == ["incremental_unassign"]


def test_a_transaction_that_cannot_be_resolved_ends_the_worker(setting: Setting) -> None:
    with pytest.raises(BadWorld, match="could not be resolved"):
        setting.puller.on_revoke(setting.consumer, [PARTITION])
    assert setting.consumer.asked == []


def test_without_kafka_a_partition_is_let_go_at_once_and_resolved_before_the_next_assignment(
    setting: Setting,
) -> None:
    setting.commits.away = True
    for give_away in (setting.puller.on_lost, setting.puller.on_revoke):
        setting.in_background(give_away).join(10)
    assert setting.consumer.asked == ["incremental_unassign"] * 2
    assigning = setting.in_background(setting.puller.on_assign)
    assert setting.commits.asked.wait(10)
    assert setting.ownership.trackers == {}
    setting.commits.resolved.set()
    assigning.join(10)
    assert list(setting.ownership.trackers) == [0]


def test_a_lost_partition_is_let_go_at_once(setting: Setting) -> None:
    setting.in_background(setting.puller.on_lost).join(10)
    assert setting.consumer.asked == ["incremental_unassign"]
    assert not setting.tracker.live


def test_what_comes_back_flows_although_it_was_paused_when_it_was_lost(setting: Setting) -> None:
    """The driver would keep the pause."""
    setting.commits.resolved.set()
    setting.puller.on_assign(setting.consumer, [PARTITION])
    assert setting.consumer.asked == ["incremental_assign", "resume"]


def test_what_a_partition_is_behind_is_told_but_for_markers_at_its_end(setting: Setting) -> None:
    puller, consumer, tracker = setting.puller, setting.consumer, setting.tracker

    def behind() -> int:
        puller.look_ahead(consumer)
        return tracker.behind

    assert behind() == 0, "before the first fetch nothing is known"
    consumer.end = 3
    assert behind() == 3
    tracker.deliver(0)
    tracker.deliver(1)
    assert behind() == 1
    assert behind() == 0, "asked for and not delivered: a marker"
    consumer.end = 4
    assert behind() == 2
    consumer.end = 1_000
    assert [behind(), behind()] == [998, 998], "more than markers"


def test_what_comes_while_there_is_no_room_is_paused(setting: Setting) -> None:
    setting.commits.resolved.set()
    setting.puller._paused = True
    setting.puller.on_assign(setting.consumer, [PARTITION])
    assert setting.consumer.asked == ["incremental_assign", "pause"]


def test_an_assignment_begins_at_the_very_offset_whose_map_was_read() -> None:
    """Rule 7: the stable committed offset and its map are one; any other start loses or repeats."""
    read: list[TopicPartition] = []

    class Committed(FakeConsumer):
        def committed(self, partitions: list[TopicPartition], _: float) -> list[TopicPartition]:
            metadata = encode_map(TOPIC_ID, 41, [(50, 60)])
            return [TopicPartition(p.topic, p.partition, 41, metadata) for p in partitions]

        def incremental_assign(self, partitions: list[TopicPartition]) -> None:
            read.extend(partitions)

    setting = Setting()
    consumer: Any = Committed()
    setting.puller.on_assign(consumer, [PARTITION])
    assert [(p.partition, p.offset) for p in read] == [(0, 41)]
    tracker = setting.ownership.trackers[0]
    assert tracker.head == 41
    assert [tracker.deliver(offset) is None for offset in (41, 50, 59, 60)] == [
        False,
        True,
        True,
        False,
    ]


class Unanswered(FakeConsumer):
    """Answers the question for offsets from the second time on, or never."""

    def __init__(self, code: int, ever: bool = True) -> None:
        super().__init__()
        self.code, self.ever, self.questions = code, ever, 0

    def committed(self, partitions: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        self.questions += 1
        assert timeout_s <= 5.0, "a question that is lost costs the whole time"
        if self.questions == 1 or not self.ever:
            raise KafkaException(KafkaError(self.code))
        return super().committed(partitions, timeout_s)


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.NOT_COORDINATOR])
def test_offsets_that_are_not_answered_are_asked_for_again(code: int) -> None:
    setting = Setting()
    consumer: Any = Unanswered(code)
    setting.puller.on_assign(consumer, [PARTITION])
    assert consumer.questions == 2
    assert setting.ownership.trackers[0].live


def test_offsets_that_are_not_answered_in_time_are_the_worlds_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streams.runtime.puller._UNSTABLE_S", 0.0)
    consumer: Any = Unanswered(KafkaError._TIMED_OUT, ever=False)
    with pytest.raises(BadWorld, match="Start the worker again"):
        Setting().puller.on_assign(consumer, [PARTITION])


def test_offsets_that_are_refused_are_a_fault_of_the_setup() -> None:
    consumer: Any = Unanswered(KafkaError.GROUP_AUTHORIZATION_FAILED, ever=False)
    with pytest.raises(BadSetup, match="not to be had"):
        Setting().puller.on_assign(consumer, [PARTITION])


def test_who_joined_again_as_another_member_commits_nothing_of_what_it_owned(
    setting: Setting,
) -> None:
    """The group had removed it, and others may have its partitions; no callback says so."""
    setting.consumer.member = "member 2"
    with pytest.raises(ConsumerBroke, match="joined it again"):
        setting.puller._refresh_metadata(setting.consumer)
    assert setting.ownership.metadata == "metadata of member 1", "which the group refuses"
    setting.puller.forget()
    assert not setting.tracker.live
    setting.puller._refresh_metadata(setting.consumer)
    assert setting.ownership.metadata == "metadata of member 2"


def test_between_two_memberships_the_old_one_stays_which_the_group_refuses(
    setting: Setting,
) -> None:
    setting.consumer.member = ""
    setting.puller._refresh_metadata(setting.consumer)
    assert setting.ownership.metadata == "metadata of member 1"
    assert setting.tracker.live


def test_partitions_that_come_between_two_memberships_come_with_the_old_one(
    setting: Setting,
) -> None:
    setting.consumer.member = ""
    setting.commits.resolved.set()
    setting.puller.on_assign(setting.consumer, [TopicPartition("mail.classify", 1)])
    assert list(setting.ownership.trackers) == [0, 1]
    assert setting.ownership.metadata == "metadata of member 1"
