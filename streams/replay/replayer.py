"""The replay: cases in, verdicts out. Writes nothing anywhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from streams.config import Settings
from streams.errors import BadSetup
from streams.flow import Flow
from streams.replay.bundle import read_bundle
from streams.replay.effects import Policy
from streams.replay.facts import Case
from streams.replay.forks import Forks
from streams.replay.lookup import lookup
from streams.replay.paths import Path
from streams.replay.pool import Load, Pool
from streams.replay.report import Report
from streams.replay.selection import OfFile, OfLetters, OfTopic, Selection
from streams.replay.sources import LettersSource, PlacesSource, Source, TopicSource
from streams.replay.trial import Trial
from streams.replay.verdict import Judged

#: Told after each batch: how far the source was read, and how far it goes.
Progress = Callable[[int, int], None]
#: Cases that are run together: of one process, and of each where there are several.
_SLICE_CASES: Final = 5_000
_PART_CASES: Final = 500


class Replayer:
    """Runs what `selection` means through the stages of `flow` and compares.

    Reads only. Raises `BadSetup` for a selection that means nothing here, `NoSuchJob`, `BadWorld`
    when Kafka or Postgres does not answer; nothing is left behind in any case. With `processes`
    above 1 handlers run in so many, each of which loads the flow by `load`.
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
        processes: int = 1,
        load: Load | None = None,
    ) -> None:
        if processes > 1 and load is None:
            raise BadSetup("Several processes need `load`: each loads the flow by itself.")
        self._processes, self._load = processes, load
        self._selection, self._flow, self._settings = selection, flow, settings
        self._policy, self._ignored = effects, ignored
        self._rate_per_s, self._examples, self._progress = rate_per_s, examples, progress

    def run(self) -> Report:
        """Blocks until all is judged. Not within an event loop: it has its own."""
        report = Report(self._examples)
        settings = self._settings
        began = time.monotonic()
        with self._opened(report) as (source, of_source, forks):
            settings = of_source or settings
            if self._processes > 1 and self._load is not None:
                made = Pool(self._processes, self._load, settings, self._policy, self._ignored)
                with made as pool:
                    self._run_pool(pool, source, report, forks)
            else:
                with Trial(self._flow, settings, self._policy, self._ignored) as trial:
                    self._run_here(trial, source, report, forks)
            report.remarks += source.remarks
        report.seconds = time.monotonic() - began
        return report

    def _run_here(self, trial: Trial, source: Source, report: Report, forks: Forks | None) -> None:
        began = time.monotonic()
        for cases in source.batches():
            for part in self._parts(_known(cases, forks), _SLICE_CASES):
                report.add(self._named(part, trial.judge(part), forks))
                self._keep_rate(began, report.total)
            self._progress(source.read(), source.total())

    def _run_pool(self, pool: Pool, source: Source, report: Report, forks: Forks | None) -> None:
        """Verdicts are taken in the order of the cases; what is under way is bounded."""
        began, given = time.monotonic(), 0
        under_way: deque[tuple[Sequence[Case], Future[list[Judged]]]] = deque()

        def take_one() -> None:
            part, future = under_way.popleft()
            report.add(self._named(part, pool.result(future), forks))

        for cases in source.batches():
            for part in self._parts(_known(cases, forks), _PART_CASES):
                if len(under_way) >= 3 * self._processes:
                    take_one()
                under_way.append((part, pool.judge(part)))
                given += len(part)
                self._keep_rate(began, given)
            self._progress(source.read(), source.total())
        while under_way:
            take_one()

    def _named(
        self, cases: Sequence[Case], verdicts: list[Judged], forks: Forks | None
    ) -> list[Judged]:
        if forks is None:
            # A file has the hash of a fork, and not what each child was handed.
            return [replace(judged, split=None) for judged in verdicts]
        return forks.named(cases, verdicts, self._ignored)

    @contextmanager
    def _opened(self, report: Report) -> Iterator[tuple[Source, Settings | None, Forks | None]]:
        """The source, settings of its own where it brings some, and who knows of forks."""
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
            source = Source(lambda: batches, lambda: total, lambda: total)
            yield source, bundle.settings(settings), None
            return
        with lookup(settings, flow) as found:
            forks = Forks(settings, found.conn)
            if isinstance(chosen, OfTopic):
                yield TopicSource(settings, flow, found, chosen).source(), None, forks
            elif isinstance(chosen, OfLetters):
                yield LettersSource(settings, found, chosen, flow).source(), None, forks
            else:
                yield PlacesSource(settings, found, chosen, flow).source(), None, forks

    def _parts(self, cases: Sequence[Case], most: int) -> Iterator[Sequence[Case]]:
        if self._rate_per_s is not None:
            most = max(1, min(most, int(self._rate_per_s)))
        for first in range(0, len(cases), most):
            yield cases[first : first + most]

    def _keep_rate(self, began: float, judged: int) -> None:
        """Wait until as many records as were judged may have been."""
        if self._rate_per_s is not None:
            time.sleep(max(0.0, began + judged / self._rate_per_s - time.monotonic()))


def _known(cases: list[Case], forks: Forks | None) -> list[Case]:
    return cases if forks is None else forks.known(cases)
