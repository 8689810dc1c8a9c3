"""The join agent's part of a worker: a stage without a handler (decision 15)."""

from __future__ import annotations

from collections.abc import Sequence

from streams.flow import Flow
from streams.joins.book import Incoming, Turn
from streams.kafka import TopicFacts
from streams.orchestration import Orchestration, orchestration_of
from streams.orchestration.journal import Player, RunTurn
from streams.runtime.join_loop import JoinLoop, join_stage
from streams.runtime.join_rows import AgentRows
from streams.runtime.services import Fail, Loop, LoopParts, Put, Shared, StageService
from streams.runtime.side_loop import SideLoop


class JoinService(StageService):
    """The join agent of a flow that forks: a stage without a handler."""

    def __init__(self, flow: Flow, shared: Shared) -> None:
        super().__init__(flow, join_stage(flow), shared)
        self._side = SideLoop(f"join {flow.name}", shared.settings)

    async def start(self, facts: TopicFacts, put: Put, fail: Fail) -> None:
        await self._side.start()
        await super().start(facts, put, fail)

    async def stop(self) -> None:
        await super().stop()
        await self._side.stop()

    def _make_loop(self, parts: LoopParts) -> Loop:
        topic_id = parts.facts.topic_id
        flow, settings = self._flow, self._settings
        player = (
            Player(flow.name, orchestrations(flow), parts.writer.encode) if flow.waits else None
        )
        rows = AgentRows(self._side.pool, settings, flow.name, topic_id, player)

        async def apply(batch: Sequence[Incoming]) -> list[Turn | RunTurn]:
            return await self._side.run(rows.apply(batch))

        return JoinLoop(
            self._flow,
            apply=apply,
            writer=parts.writer,
            gate=parts.gate,
            check=parts.check,
            commits=parts.commits,
            budget=parts.budget,
            fail=parts.fail,
        )


def orchestrations(flow: Flow) -> dict[str, Orchestration]:
    """The orchestrations of a flow by their stages' names."""
    found = ((each.name, orchestration_of(each)) for each in flow.stages)
    return {name: its for name, its in found if its is not None}
