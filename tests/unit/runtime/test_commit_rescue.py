"""A commit thread that hangs in the driver is replaced, and its transaction found out about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import pytest

from streams.config import Settings, load_settings
from streams.kafka import TopicFacts, TopicPartition
from streams.runtime import group_commit
from streams.runtime.delivery import Delivery
from streams.runtime.group_commit import GroupCommit
from streams.runtime.ownership import Ownership
from streams.runtime.transaction import GivenUp, Transactor, Verdict
from tests.unit.runtime.fakes import TOPIC_ID, FakeMessage, delivery, make_tracker


def test_a_call_that_lasts_too_long_gives_the_transactor_up_and_its_thread_learns_it() -> None:
    transactor = Transactor(load_settings(commit_timeout_s=0.01), "id", lambda: False)
    assert not transactor.give_up_if_it_hangs()
    called, returns = Event(), Event()
    learnt: list[BaseException] = []

    def call() -> None:
        called.set()
        returns.wait(10)

    def run() -> None:
        try:
            transactor._call(call)
        except GivenUp as e:
            learnt.append(e)

    thread = Thread(target=run, daemon=True)
    thread.start()
    assert called.wait(10)
    while not transactor.give_up_if_it_hangs():
        pass
    returns.set()
    thread.join(10)
    assert len(learnt) == 1


def test_a_call_that_returns_in_time_is_not_given_up_later() -> None:
    transactor = Transactor(load_settings(commit_timeout_s=0.001), "id", lambda: False)
    assert transactor._call(lambda: 1) == 1
    assert not transactor.give_up_if_it_hangs()


@dataclass
class FakeTransactors:
    """The first one hangs in `commit` until `returns`; the next ones work."""

    made: list[Any] = field(default_factory=list)
    hangs: Event = field(default_factory=Event)
    returns: Event = field(default_factory=Event)
    found: Callable[[], tuple[int, str]] = lambda: (0, "")
    commits: int = 0

    def __call__(self, *_: object) -> Any:
        fakes, number = self, len(self.made)

        class Fake:
            away = False

            def open(self) -> bool:
                return True

            def close(self) -> None: ...

            def give_up_if_it_hangs(self) -> bool:
                return number == 0 and fakes.hangs.is_set()

            def commit(self, records: Any, offsets: list[TopicPartition], _: Any) -> Verdict:
                list(records)
                if number == 0:
                    fakes.sent = offsets[0]
                    fakes.hangs.set()
                    fakes.returns.wait(10)
                    raise GivenUp
                fakes.commits += 1
                return Verdict.COMMITTED

        self.made.append(Fake())
        return self.made[-1]

    sent: Any = None


@dataclass
class Setting:
    group: GroupCommit
    work: list[Delivery]
    released: list[Delivery]
    failures: list[BaseException]
    fakes: FakeTransactors


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    fakes = FakeTransactors()
    monkeypatch.setattr(group_commit, "Turns", fakes)

    def committed(_: Settings, group: str, topic: TopicFacts) -> dict[int, TopicPartition]:
        offset, metadata = fakes.found()
        return {0: TopicPartition(topic.name, 0, offset, metadata)}

    monkeypatch.setattr(group_commit, "committed_offsets", committed)
    ownership, tracker = Ownership(), make_tracker()
    ownership.assign([tracker], "metadata")
    work = [delivery(tracker, FakeMessage(b"{}", offset=n)) for n in range(3)]
    released: list[Delivery] = []
    failures: list[BaseException] = []
    group = GroupCommit(
        load_settings(),
        TopicFacts("mail.classify", TOPIC_ID, 1),
        "mail.classify",
        "mail.classify-0",
        ownership,
        write=lambda _: (),
        in_flight=lambda: 0,
        release=released.extend,
        fail=failures.append,
    )
    group.start()
    group.add(work)
    assert fakes.hangs.wait(10)
    yield Setting(group, work, released, failures, fakes)
    fakes.returns.set()
    assert group.stop(10)
    assert failures == []


def test_a_transaction_that_had_happened_is_not_done_again(setting: Setting) -> None:
    fakes = setting.fakes
    fakes.found = lambda: (fakes.sent.offset, fakes.sent.metadata)
    setting.group.rescue()
    assert setting.group.drain([setting.work[0].tracker], 10)
    assert setting.released == setting.work
    assert fakes.commits == 0


def test_a_transaction_that_had_not_happened_is_done_by_the_new_producer(setting: Setting) -> None:
    before = setting.work[0].tracker
    setting.fakes.found = lambda: (before.head, before.metadata)
    setting.group.rescue()
    assert setting.group.drain([before], 10)
    assert setting.released == setting.work
    assert setting.fakes.commits == 1


def test_nothing_is_replaced_while_the_driver_answers(setting: Setting) -> None:
    fakes = setting.fakes
    fakes.found = lambda: (fakes.sent.offset, fakes.sent.metadata)
    fakes.hangs.clear()
    setting.group.rescue()
    assert len(fakes.made) == 1
    fakes.hangs.set()
    setting.group.rescue()
    assert len(fakes.made) == 2
