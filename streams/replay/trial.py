"""Cases through the stages of a flow, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streams.config import Settings
from streams.flow import Flow
from streams.replay.branches import PooledBranches
from streams.replay.effects import Policy
from streams.replay.facts import Case
from streams.replay.paths import Path
from streams.replay.running import StageRunner
from streams.replay.verdict import Came, Judged, judge_case


class Trial:
    """Runs cases through a flow's stages and judges them, in this process.

    `with Trial(…) as trial: trial.judge(cases)`; the event loop is its own.
    """

    def __init__(
        self, flow: Flow, settings: Settings, policy: Policy, ignored: Sequence[Path] = ()
    ) -> None:
        self._flow, self._settings, self._policy = flow, settings, policy
        self._ignored = tuple(ignored)
        self._runners: dict[str, StageRunner] = {}
        self._branches = PooledBranches(settings)
        self._loop = asyncio.Runner()

    def __enter__(self) -> Trial:
        self._loop.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._branches.close())
        self._loop.close()

    def judge(self, cases: Sequence[Case]) -> list[Judged]:
        """A verdict for each case, in their order."""
        return self._loop.run(self._judge(cases))

    async def _judge(self, cases: Sequence[Case]) -> list[Judged]:
        by_stage: dict[str, list[int]] = {}
        for n, case in enumerate(cases):
            if case.record is not None and case.step is not None and not case.because:
                by_stage.setdefault(case.stage, []).append(n)
        came: dict[int, Came] = {}
        for stage, numbers in by_stage.items():
            runner = await self._runner(stage)
            results = await runner.run([cases[n] for n in numbers])
            came.update(zip(numbers, results, strict=True))
        return [judge_case(case, came.get(n), self._ignored) for n, case in enumerate(cases)]

    async def _runner(self, stage: str) -> StageRunner:
        if stage not in self._runners:
            made = StageRunner(
                self._flow,
                self._flow.stage(stage),
                self._settings,
                self._policy,
                self._branches,
            )
            await made.prepare()
            self._runners[stage] = made
        return self._runners[stage]
