"""Reads the control topic: whole before a worker's first record, then as it grows. No group.

A worker that cannot read it does not start, since it would run what is cancelled. While Kafka is
away later, orders that nobody could write are not missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

import structlog

from streams.config import Settings
from streams.control.order import Kind
from streams.control.standing import Standing
from streams.errors import BadSetup
from streams.kafka import (
    Reading,
    TopicFacts,
    admin_client,
    describe_topics,
    follow,
    low_watermarks,
)

log = structlog.get_logger(__name__)

_END_S: Final = 5.0

#: Told from the reader's thread what a record was about.
Changed = Callable[[Kind], object]


class ControlReader:
    """`load` first, then `start`; `standing` is what is ordered as far as was read."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.standing = Standing()
        self._listeners: list[Changed] = []
        self._topic: TopicFacts | None = None
        self._at: dict[int, int] = {}
        self._stopping = Event()
        self._thread: Thread | None = None

    def listen(self, changed: Changed) -> None:
        """`changed` hears of every order from now on, after `standing` has it."""
        self._listeners.append(changed)

    def load(self) -> None:
        """Read all that lies there. Blocking.

        Raises `BadSetup` if there is no such topic, `BadWorld` when Kafka does not answer.
        """
        name = self._settings.names.control_topic
        with admin_client(self._settings) as admin:
            topic = describe_topics(self._settings, admin, [name]).get(name)
            if topic is None:
                raise BadSetup(f"Topic {name} does not exist. Run `handoff topics apply` first.")
            low = low_watermarks(self._settings, admin, topic)
            reading = Reading(
                self._settings, admin, [topic], {(name, p): at for p, at in low.items()}
            )
            for batch in reading.batches():
                for record in batch:
                    self.standing.apply(record.key(), record.value())
        self._topic = topic
        self._at = {p: at for (_, p), at in reading.at.items()}

    def start(self, fail: Callable[[BaseException], None]) -> None:
        """Follow it. `fail` is told what ends that: records that were lost, no topic any more."""
        self._thread = Thread(target=self._run, args=(fail,), name="control", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self, fail: Callable[[BaseException], None]) -> None:
        assert self._topic is not None, "load first"
        try:
            for batch in follow(self._settings, self._topic, self._at, idle=True):
                if self._stopping.is_set():
                    return
                found = [self.standing.apply(r.key(), r.value()) for r in batch]
                told = Counter(kind for kind in found if kind is not None)
                for kind, orders in told.items():
                    log.info("ordered", kind=kind.value, orders=orders)
                    for changed in self._listeners:
                        changed(kind)
        except Exception as e:
            fail(e)


def look(settings: Settings, *, needed: bool = True) -> Standing:
    """What is ordered now, for a command; nothing if there is no topic yet and it is not `needed`.

    Blocking; raises as `ControlReader.load` does.
    """
    reader = ControlReader(settings)
    try:
        reader.load()
    except BadSetup:
        if needed:
            raise
    return reader.standing
