"""Who leaves a group that has given a partition to nobody: one member, and only when it is sure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

import pytest

from streams.config import load_settings
from streams.errors import BadWorld
from streams.kafka import TopicFacts
from streams.kafka.groups import GroupFacts, Member
from streams.runtime import unowned
from streams.runtime.unowned import Unowned

SLOT_0, SLOT_1 = Member("mail.act-0", "a"), Member("mail.act-1", "b")


class Group:
    """What the broker says of it, or that it says nothing."""

    def __init__(self, owners: Mapping[int, Member], state: str = "STABLE") -> None:
        self.facts: GroupFacts | None = GroupFacts(state, (SLOT_0, SLOT_1), owners)
        self.asked = 0

    def describe(self, *_: object, **__: object) -> GroupFacts:
        self.asked += 1
        if self.facts is None:
            raise BadWorld("away")
        return self.facts


@contextmanager
def no_client(_: object) -> Iterator[None]:
    yield


def watch(monkeypatch: pytest.MonkeyPatch, group: Group, member: Member) -> Unowned:
    """Of two partitions; a look is due at once."""
    monkeypatch.setattr(unowned, "admin_client", no_client)
    monkeypatch.setattr(unowned, "describe_group", group.describe)
    monkeypatch.setattr(unowned, "_LOOK_AFTER_SESSIONS", 0)
    found = Unowned(
        load_settings(), TopicFacts("mail.act", uuid4(), 2), "mail.act", member.instance
    )
    found.look_later()
    return found


def test_the_member_that_owns_least_leaves_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group({0: SLOT_0})
    assert not watch(monkeypatch, group, SLOT_0).ours_to_mend()
    assert watch(monkeypatch, group, SLOT_1).ours_to_mend()


def test_of_equals_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group({})
    assert watch(monkeypatch, group, SLOT_0).ours_to_mend()
    assert not watch(monkeypatch, group, SLOT_1).ours_to_mend()


def test_where_all_is_owned_it_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group({0: SLOT_0, 1: SLOT_1})
    look = watch(monkeypatch, group, SLOT_0)
    assert not look.ours_to_mend()
    assert not look.ours_to_mend()
    assert group.asked == 1, "a settled group costs no requests"


def test_a_group_that_is_dealing_or_cannot_be_seen_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group({0: SLOT_1}, state="PREPARING_REBALANCING")
    look = watch(monkeypatch, group, SLOT_0)
    assert not look.ours_to_mend()
    group.facts = None
    assert not look.ours_to_mend()
    group.facts = GroupFacts("STABLE", (SLOT_0, SLOT_1), {0: SLOT_1})
    assert look.ours_to_mend()
