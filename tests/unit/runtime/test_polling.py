"""A consumer that breaks for good is replaced once, and not for ever."""

from __future__ import annotations

from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from streams.config import load_settings
from streams.errors import BadWorld, Fenced
from streams.kafka import TopicFacts
from streams.runtime import polling
from streams.runtime.polling import ConsumerBroke, PollingThread


class FakeConsumer:
    def __init__(self) -> None:
        self.closed = False

    def subscribe(self, *_: Any, **__: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Polling(PollingThread):
    """Each consumer breaks with the next of `breaks`, then all goes well."""

    def __init__(self, breaks: list[BaseException]) -> None:
        self.breaks = breaks
        self.consumers: list[Any] = []
        self.forgotten = 0
        self.failure: BaseException | None = None
        self.over = Event()
        super().__init__(load_settings(), TopicFacts("mail.act", uuid4(), 1), "mail.act", self._end)

    def _end(self, error: BaseException) -> None:
        self.failure = error
        self.over.set()

    def step(self, consumer: Any) -> None:
        if not self.consumers or self.consumers[-1] is not consumer:
            self.consumers.append(consumer)
        if self.breaks:
            raise self.breaks.pop(0)
        self.over.set()
        self._ending.wait(0.01)

    def forget(self) -> None:
        self.forgotten += 1

    def on_assign(self, consumer: Any, partitions: Any) -> None: ...

    def on_revoke(self, consumer: Any, partitions: Any) -> None: ...

    def on_lost(self, consumer: Any, partitions: Any) -> None: ...


def run(monkeypatch: pytest.MonkeyPatch, *breaks: BaseException) -> Polling:
    monkeypatch.setattr(polling, "group_consumer", lambda *_, **__: FakeConsumer())
    thread = Polling(list(breaks))
    thread.start()
    assert thread.over.wait(30)
    assert thread.stop(30)
    return thread


@pytest.mark.parametrize("error", [Fenced("fenced"), ConsumerBroke("broke")])
def test_a_consumer_that_breaks_is_replaced_and_what_it_had_is_let_go(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    thread = run(monkeypatch, error)
    assert thread.failure is None
    assert thread.forgotten == 1
    assert len(thread.consumers) == 2
    assert all(consumer.closed for consumer in thread.consumers)


def test_who_is_fenced_again_at_once_has_a_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = run(monkeypatch, Fenced("first"), Fenced("second"))
    assert isinstance(thread.failure, Fenced)
    assert len(thread.consumers) == 2


def test_other_errors_end_the_worker_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = run(monkeypatch, BadWorld("no"))
    assert isinstance(thread.failure, BadWorld)
    assert thread.forgotten == 0


def test_after_a_while_it_may_break_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_BROKEN_AGAIN_SESSIONS", 0)
    thread = run(monkeypatch, *[Fenced("again") for _ in range(4)])
    assert thread.failure is None
    assert thread.forgotten == 4
