"""The agent `timers`: the timekeeper (topic into Postgres) and a dispatcher beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from streams.config import Settings
from streams.kafka import Record, TopicFacts
from streams.postgres import Pool
from streams.runtime.health import AgentFacts
from streams.runtime.services import Fail, Put
from streams.runtime.state_reader import Batch
from streams.runtime.state_services import ReaderService
from streams.timers.dispatcher import Dispatcher
from streams.timers.record import AnyHeaders, TimerRecord
from streams.timers.timekeeper import Timekeeper


class TimerService(ReaderService[TimerRecord]):
    """Timers into Postgres, exactly once, and back to their topics when they are due, at least
    once. Any number of processes may run it."""

    name = "timers"
    help = "Keep the timers in Postgres and return what is due."

    def __init__(self, settings: Settings, pool: Pool) -> None:
        super().__init__(settings, pool, settings.names.timers_topic, settings.names.timers_group)
        self._timekeeper: Timekeeper | None = None
        self._dispatcher = Dispatcher(pool, settings)
        self._dispatching: asyncio.Task[None] | None = None

    def _open(self, facts: TopicFacts) -> Callable[[], Awaitable[dict[int, int]]]:
        self._timekeeper = Timekeeper(
            self._pool, self._settings, topic=self.topic, topic_id=facts.topic_id
        )
        return self._timekeeper.positions

    def _read(self, topic: TopicFacts, message: Record) -> TimerRecord:
        headers: AnyHeaders | None
        try:
            headers = message.headers() or ()
        except (UnicodeDecodeError, ValueError):
            headers = None
        return TimerRecord(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=message.partition(),
            offset=message.offset(),
            timestamp_ms=message.timestamp()[1],
            key=message.key(),
            value=message.value(),
            headers=headers,
        )

    async def _do(self, batch: Batch[TimerRecord]) -> None:
        assert self._timekeeper is not None
        await self._timekeeper.store(batch.records, batch.moves)

    async def start(self, facts: TopicFacts, put: Put, fail: Fail) -> None:
        await super().start(facts, put, fail)

        async def dispatch() -> None:
            try:
                await self._dispatcher.run()
            except Exception as e:
                fail(e)

        self._dispatching = asyncio.create_task(dispatch())

    def facts(self) -> AgentFacts:
        return AgentFacts(self._reader, paused=self._dispatcher.paused)

    async def stop(self) -> None:
        self._dispatcher.stop()
        await super().stop()
        if self._dispatching is not None:
            await self._dispatching
