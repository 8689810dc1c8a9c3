"""A stage with limits in one worker: a stage whose loop asks before it starts (decision 18)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import structlog

from streams.errors import BadWorld
from streams.flow import Flow, Stage
from streams.kafka import TopicFacts
from streams.limits.gate import Gate
from streams.limits.rows import Answer, LimitRows, Question
from streams.runtime.services import Fail, Loop, LoopParts, Put, Shared, StageService
from streams.runtime.side_loop import SideLoop
from streams.runtime.stage_loop import StageLoop
from streams.runtime.telemetry import limits
from streams.tracing.metrics import Attributes, Spec

Reading = tuple[Spec, Attributes, float]

log = structlog.get_logger(__name__)

_FORGET_EVERY_S: Final = 3_600.0
_LEAVE_S: Final = 2.0


class LimitedService(StageService):
    """A stage with limits. It asks Postgres from an event loop of its own: how exactly a start can
    be timed depends on how long an answer takes."""

    def __init__(self, flow: Flow, stage: Stage[Any, Any], shared: Shared) -> None:
        super().__init__(flow, stage, shared)
        self._side = SideLoop(f"limits {stage.name}", shared.settings)
        self._rows = LimitRows(
            self._side.pool,
            shared.settings,
            stage.limits,
            f"{shared.settings.prefix}{flow.name}.{stage.name}.{shared.worker}",
        )
        self._limits: Gate | None = None
        self._tidying: asyncio.Task[None] | None = None

    async def start(self, facts: TopicFacts, put: Put, fail: Fail) -> None:
        await self._side.start()
        # The first thing that is asked of the tables, so that it says if they are not there.
        await self._side.run(self._rows.forget())
        await super().start(facts, put, fail)
        self._tidying = asyncio.create_task(self._tidy())

    def _make_loop(self, parts: LoopParts) -> Loop:
        loop = super()._make_loop(parts)
        assert isinstance(loop, StageLoop)

        async def ask(question: Question) -> Answer:
            return await self._side.run(self._rows.ask(question))

        self._limits = loop.limits = Gate(
            self.name,
            self._stage.limits,
            ask,
            loop,
            most=self._settings.max_in_flight_records // 2,
            journal=parts.journal,
            fail=parts.fail,
        )
        loop.limits.start()
        return loop

    def limits(self) -> Iterable[Reading]:
        """A gauge of its limits."""
        return () if self._limits is None else limits(self.topic, self._limits)

    async def stop(self) -> None:
        await super().stop()
        if self._tidying is not None:
            self._tidying.cancel()
            with suppress(asyncio.CancelledError):
                await self._tidying
        if self._limits is not None:
            await self._limits.close()
            try:
                async with asyncio.timeout(_LEAVE_S):
                    await self._side.run(self._rows.leave())
            except (BadWorld, TimeoutError) as e:
                # Their lease ends.
                log.warning("places_not_given_back", stage=self.name, why=str(e))
        await self._side.stop()

    async def _tidy(self) -> None:
        """Remove rows of keys that have been idle for long."""
        while True:
            await asyncio.sleep(_FORGET_EVERY_S)
            with suppress(BadWorld):
                await self._side.run(self._rows.forget())
