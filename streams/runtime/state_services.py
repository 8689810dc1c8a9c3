"""The agents on `job-state`: the projector (into Postgres) and the tracer (to a collector)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

from streams.config import Settings
from streams.errors import BadWorld
from streams.kafka import Record, TopicFacts
from streams.positions import Moved
from streams.postgres import Pool
from streams.runtime.account import Account, told
from streams.runtime.health import AgentFacts
from streams.runtime.records import now_us
from streams.runtime.services import Fail, Put
from streams.runtime.state_reader import Batch, PositionReader
from streams.runtime.telemetry import count_steps
from streams.state.fold import StateRecord
from streams.state.projector import Projection, state_record
from streams.tracing import SpanSink, TracerPositions, read_hop
from streams.tracing.metrics import Metrics

log = structlog.get_logger(__name__)

_PAUSE_S = 0.5

R = TypeVar("R")


class ReaderService(Generic[R]):
    """Common life of agents with positions of their own: a reader thread, batches one by one, a
    retry while the world is bad, a new start where the positions stand when they were moved."""

    name: str
    help: str

    def __init__(self, settings: Settings, pool: Pool, topic: str, group: str) -> None:
        self._settings, self._pool = settings, pool
        self.topic, self.group = topic, group
        self._reader: PositionReader[R] | None = None

    def _open(self, facts: TopicFacts) -> Callable[[], Awaitable[dict[int, int]]]:
        """Prepare for `facts`; returns what tells the positions to read from."""
        raise NotImplementedError

    def _read(self, topic: TopicFacts, message: Record) -> R:
        """What a batch holds of `message`; called from the polling thread, must not raise."""
        raise NotImplementedError

    async def _do(self, batch: Batch[R]) -> None:
        """Apply a batch. Raises `BadWorld` (again later) or `Moved` (it changed nothing)."""
        raise NotImplementedError

    async def start(self, facts: TopicFacts, put: Put, fail: Fail) -> None:
        self._reader = PositionReader(
            self._settings,
            facts,
            self.group,
            positions=self._open(facts),
            read=self._read,
            deliver=put,
            fail=fail,
            loop=asyncio.get_running_loop(),
        )
        self._reader.start()

    async def run(self, stream: AsyncIterator[Batch[R]]) -> None:
        async for batch in stream:
            assert self._reader is not None
            try:
                while batch.epoch == self._reader.epoch:
                    try:
                        await self._do(batch)
                        break
                    except Moved as e:
                        log.info("positions_moved", agent=self.name, why=e.message)
                        self._reader.reset()
                        break
                    except BadWorld as e:
                        log.warning("stage_paused", stage=self.name, why=e.message)
                        await asyncio.sleep(_PAUSE_S)
            finally:
                self._reader.done()

    def facts(self) -> AgentFacts:
        return AgentFacts(self._reader)

    def account(self) -> Account:
        return told(self.facts().paused)

    async def stop(self) -> None:
        if self._reader is not None:
            await asyncio.to_thread(self._reader.stop, self._settings.commit_timeout_s)


class _StateService(ReaderService[StateRecord]):
    """An agent on `job-state`."""

    def __init__(self, settings: Settings, pool: Pool, group: str) -> None:
        super().__init__(settings, pool, settings.names.job_state_topic, group)

    def _read(self, topic: TopicFacts, message: Record) -> StateRecord:
        return state_record(topic, message)


class ProjectorService(_StateService):
    """`job-state` into Postgres, exactly once: offsets move in the transaction of the rows."""

    name = "projector"
    help = "Fold job-state into Postgres (jobs, job_history)."

    def __init__(self, settings: Settings, pool: Pool, metrics: Metrics | None = None) -> None:
        """With `metrics`, what is applied is counted there."""
        super().__init__(settings, pool, settings.names.projector_group)
        self._metrics = metrics
        self._projection: Projection | None = None

    def _open(self, facts: TopicFacts) -> Callable[[], Awaitable[dict[int, int]]]:
        self._projection = Projection(
            self._pool, self._settings, topic=self.topic, topic_id=facts.topic_id
        )
        return self._projection.positions

    async def _do(self, batch: Batch[StateRecord]) -> None:
        assert self._projection is not None
        applied = await self._projection.apply(batch.records, batch.moves)
        if self._metrics is not None:
            count_steps(self._metrics, applied.steps, now_us())


class TracerService(_StateService):
    """Hop spans of committed states to the collector: at least once, always with the same ids."""

    name = "tracer"
    help = "Export the hop spans of committed states by OTLP."

    def __init__(self, settings: Settings, pool: Pool) -> None:
        super().__init__(settings, pool, settings.names.tracer_group)
        self._positions: TracerPositions | None = None
        self._sink = SpanSink()

    def _open(self, facts: TopicFacts) -> Callable[[], Awaitable[dict[int, int]]]:
        self._positions = TracerPositions(self._pool, self._settings, facts.topic_id)
        return self._positions.load

    async def _do(self, batch: Batch[StateRecord]) -> None:
        assert self._positions is not None
        await asyncio.to_thread(self._export, batch.records)
        await self._positions.advance({m.partition: m.to_offset for m in batch.moves})

    def _export(self, records: Sequence[StateRecord]) -> None:
        self._sink.export([hop for r in records if (hop := read_hop(r.value)) is not None])

    async def stop(self) -> None:
        await super().stop()
        self._sink.close()
