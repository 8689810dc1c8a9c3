"""Goal: rule 1 of the commit protocol. What a dead tracker delivered is in no transaction.

The other layers (drain, cancelled handlers) hide this guard in a running worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streams.config import load_settings
from streams.kafka import TopicFacts
from streams.runtime.delivery import Delivery
from streams.runtime.group_commit import GroupCommit
from streams.runtime.ownership import Ownership
from streams.runtime.tracker import Tracker
from tests.unit.runtime.fakes import TOPIC_ID, FakeMessage, delivery, make_tracker


def commits(
    ownership: Ownership, released: list[Delivery], in_flight: Callable[[], int] = lambda: 0
) -> GroupCommit:
    def release(deliveries: Sequence[Delivery]) -> None:
        released.extend(deliveries)

    def fail(error: BaseException) -> None:
        raise error

    return GroupCommit(
        load_settings(),
        TopicFacts("mail.classify", TOPIC_ID, 2),
        "mail.classify",
        "mail.classify-0",
        ownership,
        write=lambda _: (),
        in_flight=in_flight,
        release=release,
        fail=fail,
    )


def owned(partition: int, ownership: Ownership) -> tuple[Tracker, list[Delivery]]:
    tracker = make_tracker(partition)
    ownership.assign([tracker], f"metadata when {partition} came")
    return tracker, [delivery(tracker, FakeMessage(b"{}", offset=n)) for n in range(3)]


def test_work_of_a_revoked_partition_is_released_and_not_committed() -> None:
    ownership, released = Ownership(), list[Delivery]()
    _, lost = owned(0, ownership)
    kept_tracker, kept = owned(1, ownership)
    group = commits(ownership, released)
    ownership.end([0])
    selection = group._select([*lost, *kept])
    assert selection.deliveries == kept
    assert list(selection.candidates) == [kept_tracker]
    assert released == lost


def test_a_partition_that_came_back_does_not_revive_what_its_former_tracker_delivered() -> None:
    ownership, released = Ownership(), list[Delivery]()
    _, old = owned(0, ownership)
    ownership.end([0])
    tracker, new = owned(0, ownership)
    selection = commits(ownership, released)._select([*old, *new])
    assert selection.deliveries == new
    assert selection.candidates[tracker].head == 3
    assert released == old


def test_the_metadata_is_that_of_the_moment_of_the_selection() -> None:
    ownership = Ownership()
    _, work = owned(0, ownership)
    group = commits(ownership, [])
    owned(1, ownership)
    assert group._select(work).metadata == "metadata when 1 came"


def test_what_does_not_fit_into_the_map_waits_and_is_neither_written_nor_released() -> None:
    ownership, released = Ownership(), list[Delivery]()
    tracker = make_tracker()
    ownership.assign([tracker], None)
    work = [delivery(tracker, FakeMessage(b"{}", offset=n)) for n in range(9_000)]
    every_other = work[1::2]
    selection = commits(ownership, released)._select(every_other)
    assert 0 < len(selection.deliveries) < len(every_other)
    assert selection.deliveries == every_other[: len(selection.deliveries)]
    assert released == []
