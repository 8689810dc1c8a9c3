"""Runs the handlers of one stage on records that were consumed before, as the stage loop does.

Decoding, validation, judgement and the outcome's form are the worker's own code. What is missing on
purpose: claims, the journal, the pause of a stage, waits, and everything that writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import orjson

from schemas.state import JOIN, JobError, Status, job_error
from streams.config import Settings
from streams.flow import Flow, Stage
from streams.joins import BranchSource
from streams.replay.branches import FileBranches, KeptBranches
from streams.replay.effects import KeptEffects, Policy
from streams.replay.facts import Case, StoredRecord
from streams.replay.verdict import Came
from streams.runtime.delivery import Delivery
from streams.runtime.judge import GiveUp, RunAgain, WorldIsBad, judge
from streams.runtime.pause import Pause
from streams.runtime.records import RecordWriter, now_us
from streams.runtime.runs import Runs
from streams.runtime.time_limit import TimeLimit
from streams.runtime.tracker import Tracker

#: Kind of error of a run that met a bad world: a worker would have waited.
BAD_WORLD: Final = "bad_world"


class StageRunner:
    """One stage of the flow. `await prepare()` first. `branches` are read by the handlers of joins,
    where a case brings none."""

    def __init__(
        self,
        flow: Flow,
        stage: Stage[Any, Any],
        settings: Settings,
        policy: Policy,
        branches: BranchSource,
    ) -> None:
        self._flow, self._stage, self._settings, self._policy = flow, stage, settings, policy
        self._branches = branches
        self._writer = RecordWriter(flow, stage, settings, "replay")
        self._limit_s = stage.timeout.total_seconds()
        self._rng = random.Random()  # noqa: S311 - jitter, no secret
        self._trackers: dict[tuple[UUID, int], Tracker] = {}

    async def prepare(self) -> None:
        """What a worker does once before the first record."""
        if self._stage.prepare is not None:
            await asyncio.to_thread(self._stage.prepare)

    async def run(self, cases: Sequence[Case]) -> list[Came]:
        """What comes of each; async handlers run concurrently, up to the stage's limit. Raises
        `BadWorld` when Postgres did not give the results of a join."""
        pause = Pause(self._stage.name, lambda: None, self._rng)
        runs = [self._run_of(case, pause) for case in cases]
        waiting = iter([run for run in runs if run.usable])
        if self._stage.is_async:
            limit = TimeLimit(self._limit_s)
            lanes = min(self._stage.concurrency, len(runs))
            async with asyncio.TaskGroup() as group:
                for _ in range(lanes):
                    group.create_task(self._lane(waiting, limit))
        else:
            for run in waiting:
                self._run_inline(run)
        for run in runs:
            if run.branches.fault is not None:
                raise run.branches.fault
        return [run.came() for run in runs]

    def _run_of(self, case: Case, pause: Pause) -> _Run:
        assert case.record is not None, "a case without a record is not run"
        effects = KeptEffects(case, self._policy)
        of_case = None if case.branches is None else FileBranches(case.branches)
        branches = KeptBranches(of_case or self._branches)
        runs = Runs(
            self._flow.name,
            self._stage,
            self._settings,
            self._writer,
            effects,
            pause,
            self._rng,
            branches=branches,
        )
        d = Delivery(case.record, self._tracker(case.record), 0, now_us())
        d.identify(self._flow.name.encode())
        is_last = case.step is not None and case.step.is_last
        return _Run(d, runs, effects, branches, is_last=is_last)

    def _tracker(self, record: StoredRecord) -> Tracker:
        where = (record.topic_id, record.partition_)
        if where not in self._trackers:
            self._trackers[where] = tracker_of(record)
        return self._trackers[where]

    async def _lane(self, waiting: Iterator[_Run], limit: TimeLimit) -> None:
        for run in waiting:
            await self._run_concurrent(run, limit)

    async def _run_concurrent(self, run: _Run, limit: TimeLimit) -> None:
        d = run.delivery
        d.task = task = asyncio.current_task()
        assert task is not None
        while True:
            job, failed = run.runs.begin(d), None
            limit.start(d)
            try:
                run.runs.conclude(d, await self._stage.handler(d.model, job))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as e:
                failed = e
            if limit.end(d):
                task.uncancel()
                if failed is not None:
                    failed = TimeoutError(f"no result after {self._limit_s} s")
            elif isinstance(failed, asyncio.CancelledError) and task.cancelling():
                raise failed
            if failed is None or self._is_over(run, failed):
                return

    def _run_inline(self, run: _Run) -> None:
        d = run.delivery
        while True:
            job = run.runs.begin(d)
            try:
                run.runs.conclude(d, self._stage.handler(d.model, job))
                return
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as e:
                if self._is_over(run, e):
                    return

    def _is_over(self, run: _Run, error: BaseException) -> bool:
        """Whether the run that raised was the last one; its result is then final."""
        d = run.delivery
        if run.ended:
            return True
        stage = self._stage
        fate = judge(error, stage=stage.name, attempt=d.attempt, policy=stage.retry, rng=self._rng)
        match fate:
            case GiveUp():
                run.runs.give_up(d, fate)
            case WorldIsBad(reason=reason):
                run.runs.give_up(d, GiveUp(job_error(BAD_WORLD, reason), Status.WAITING))
            case RunAgain(in_place=True):
                # Nothing has changed meanwhile, so nothing is waited for.
                return False
            case RunAgain():
                d.why = fate.error
                run.runs.wait_for_timer(d, fate.wait_s)
        return True


def tracker_of(record: StoredRecord) -> Tracker:
    """Tells a delivery where it lies; nothing is tracked."""
    return Tracker(
        topic=record.topic_,
        topic_id=record.topic_id,
        partition=record.partition_,
        head=record.offset_,
        metadata="",
        finished=(),
    )


class _Run:
    """One record in work. `usable`: its handler is to run; otherwise its fate is decided."""

    def __init__(
        self,
        d: Delivery,
        runs: Runs,
        effects: KeptEffects,
        branches: KeptBranches,
        *,
        is_last: bool,
    ) -> None:
        self.delivery, self.runs, self.effects, self.branches = d, runs, effects, branches
        self._is_last = is_last
        self.usable = runs.prepare(d)

    @property
    def ended(self) -> bool:
        """It was cut off, at an effect or at the results of a join."""
        return self.effects.ended is not None or bool(self.branches.lost)

    def came(self) -> Came:
        if self.ended:
            return Came(ended=self.effects.ended, lost=self.branches.lost)
        result = self.delivery.result
        assert result is not None, "tombstones are not run"
        to = () if result.target is None else tuple(orjson.loads(result.target.names))
        begun = None
        if result.advance is not None:
            begun = tuple(orjson.loads(result.advance.state)["waits"])
        if result.split is not None or begun is not None:
            to = (JOIN,)
        # Earlier steps of the job at this stage may have ended before its effects.
        unasked = [e.name for e in self.effects.unasked()] if self._is_last else []
        error: JobError | None = result.error
        made = Came(result.status, to, result.data, error, None, tuple(unasked))
        return replace(made, fork=result.split, begun=begun)
