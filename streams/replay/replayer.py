"""The replay: cases in, verdicts out. Writes nothing anywhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from streams.config import Settings
from streams.errors import BadSetup
from streams.flow import Flow
from streams.replay.bundle import read_bundle
from streams.replay.effects import Policy
from streams.replay.facts import Case
from streams.replay.lookup import lookup
from streams.replay.paths import Path
from streams.replay.report import Report
from streams.replay.running import StageRunner
from streams.replay.selection import OfFile, OfLetters, OfTopic, Selection
from streams.replay.sources import LettersSource, PlacesSource, Source, TopicSource
from streams.replay.verdict import Came, Judged, judge_case

#: Told after each batch: how far the source was read, and how far it goes.
Progress = Callable[[int, int], None]
#: Most cases that are in memory at once; sources give less.
_SLICE_CASES: Final = 5_000


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
        self._loop = asyncio.Runner()

    def __enter__(self) -> Trial:
        self._loop.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
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
            made = StageRunner(self._flow, self._flow.stage(stage), self._settings, self._policy)
            await made.prepare()
            self._runners[stage] = made
        return self._runners[stage]


class Replayer:
    """Runs what `selection` means through the stages of `flow` and compares.

    Reads only. Raises `BadSetup` for a selection that means nothing here, `NoSuchJob`, `BadWorld`
    when Kafka or Postgres does not answer; nothing is left behind in any case.
    """

    def __init__(
        self,
        selection: Selection,
        flow: Flow,
        settings: Settings,
        *,
        effects: Policy = Policy.LEDGER,
        ignored: Sequence[Path] = (),
        rate_per_s: float | None = None,
        examples: int = 3,
        progress: Progress = lambda read, total: None,
    ) -> None:
        self._selection, self._flow, self._settings = selection, flow, settings
        self._policy, self._ignored = effects, ignored
        self._rate_per_s, self._examples, self._progress = rate_per_s, examples, progress

    def run(self) -> Report:
        """Blocks until all is judged. Not within an event loop: it has its own."""
        report = Report(self._examples)
        settings = self._settings
        began = time.monotonic()
        with self._opened(report) as (source, of_source):
            settings = of_source or settings
            with Trial(self._flow, settings, self._policy, self._ignored) as trial:
                for cases in source.batches():
                    for part in self._parts(cases):
                        report.add(trial.judge(part))
                        self._keep_rate(began, report.total)
                    self._progress(source.read(), source.total())
            report.remarks += source.remarks
        report.seconds = time.monotonic() - began
        return report

    @contextmanager
    def _opened(self, report: Report) -> Iterator[tuple[Source, Settings | None]]:
        """The source, and settings of its own where it brings some."""
        chosen, settings, flow = self._selection, self._settings, self._flow
        if isinstance(chosen, OfFile):
            bundle = read_bundle(chosen.path)
            if bundle.flow != flow.name:
                raise BadSetup(
                    f"{chosen.path} holds a job of flow {bundle.flow}, and --app names flow "
                    f"{flow.name}."
                )
            report.redacted = bool(bundle.redacted)
            total = len(bundle.cases)
            batches = iter([list(bundle.cases)])
            yield Source(lambda: batches, lambda: total, lambda: total), bundle.settings(settings)
            return
        with lookup(settings, flow) as found:
            if isinstance(chosen, OfTopic):
                yield TopicSource(settings, flow, found, chosen).source(), None
            elif isinstance(chosen, OfLetters):
                yield LettersSource(settings, found, chosen, flow).source(), None
            else:
                yield PlacesSource(settings, found, chosen, flow).source(), None

    def _parts(self, cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
        most = _SLICE_CASES
        if self._rate_per_s is not None:
            most = max(1, min(most, int(self._rate_per_s)))
        for first in range(0, len(cases), most):
            yield cases[first : first + most]

    def _keep_rate(self, began: float, judged: int) -> None:
        """Wait until as many records as were judged may have been."""
        if self._rate_per_s is not None:
            time.sleep(max(0.0, began + judged / self._rate_per_s - time.monotonic()))
