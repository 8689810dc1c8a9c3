"""The loop of a stage, once, for all stages:

1 decode and validate → 2 open the job's span context → 3 check suspects → 4 run the handler under
its time-out, limiter and retry policy → 5 turn the outcome into records → 6 group commit: one Kafka
transaction with records and offsets → 7 release.

Steps 1 to 5 are here, in the event loop; 6 is `group_commit`, in a thread of its own. No exception
leaves the loop: the fate of a record is a value that we decide.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

import structlog

from schemas.state import JobError, job_error
from streams.config import Settings
from streams.context import EffectRunner
from streams.control import Standing
from streams.crashpoints import reach
from streams.errors import BadRecord
from streams.flow import Flow, Stage
from streams.joins import BranchSource
from streams.limits.gate import Gate
from streams.limits.limit import LIMITED
from streams.runtime.account import NAMED, held
from streams.runtime.budget import Budget
from streams.runtime.cutting import Cutter
from streams.runtime.delivery import Delivery
from streams.runtime.group_commit import GroupCommit
from streams.runtime.judge import GiveUp
from streams.runtime.lanes import Lanes
from streams.runtime.pause import Pause
from streams.runtime.records import RecordWriter, now_us
from streams.runtime.runs import Runs
from streams.runtime.stage_journal import StageJournal
from streams.runtime.suspects import SuspectGate
from streams.runtime.time_limit import TimeLimit
from streams.runtime.tracker import NO_HORIZON, Tracker
from streams.tracing import HopContext

log = structlog.get_logger(__name__)

#: Inline handlers give the event loop a turn after so many records, or so much time.
_SLICE_RECORDS = 250
_SLICE_US = 100_000
#: Limited inline handlers get moments for so long ahead: each holds up the next.
_INLINE_S = 0.25
#: What cancelled handlers get to end; one that goes on is left behind.
_CANCEL_S = 1.0


class StageLoop:
    """Runs the handlers of one stage in one worker. All methods belong to the event loop."""

    def __init__(
        self,
        flow: Flow,
        stage: Stage[Any, Any],
        settings: Settings,
        *,
        writer: RecordWriter,
        gate: SuspectGate,
        effects: EffectRunner,
        commits: GroupCommit,
        budget: Budget,
        journal: StageJournal | None = None,
        branches: BranchSource | None = None,
        control: Standing | None = None,
    ) -> None:
        self._flow = flow.name.encode()
        self._control = control or Standing()
        self._key = flow.name, stage.name
        self._stage = stage
        self._handler = stage.handler
        self._is_async = stage.is_async
        self._timeout_s = stage.timeout.total_seconds()
        self._time_limit = TimeLimit(self._timeout_s)
        self._gate, self._commits, self._budget = gate, commits, budget
        self._journal = journal
        self._hop_context = HopContext()
        self._lanes = Lanes()
        self._runnable: deque[Delivery] = deque()
        self._running = 0
        #: Inline handlers have had their slice; the rest goes on in the next turn.
        self._slice_due = False
        self._finished: list[Delivery] = []
        self._flush_due = False
        self._stopping = False
        self._idle = asyncio.Event()
        rng = random.Random()  # noqa: S311 - jitter, no secret
        self._pause = Pause(stage.name, self._start_more, rng)
        self._runs = Runs(
            flow.name, stage, settings, writer, effects, self._pause, rng, budget, branches, control
        )
        #: Set before the first record of a stage with limits.
        self.limits: Gate | None = None
        self._cutter = Cutter(settings.cancel_grace_s)
        #: To be written down and started, in this order; and whether that is under way.
        self._kept: list[Delivery] = []
        self._starting = False
        #: A person has paused the stage.
        self._shut = False
        self.on_order()

    @property
    def paused(self) -> str | None:
        """Why no handler starts now though there may be work, or None; for any thread."""
        if (order := self._control.pauses(*self._key)) is not None:
            return f"paused {order.said}"
        paused = self._journal.paused if self._journal is not None else None
        limited = self.limits.paused if self.limits is not None else None
        # A pause that waits for a record to probe with stops nobody.
        mine = self._pause.reason if self._lanes.active else None
        return paused or self._gate.waits or mine or limited

    def held(self) -> dict[str, Any]:
        """What is in its hands, as `streams.runtime.account` spells it; takes time with each record
        in work, so it is for a sign of life, not for a record."""
        mine = held(self._lanes.active, now_us(), asyncio.get_running_loop().time())
        if self.limits is not None:
            mine |= {"limited": self.limits.waiting, "limits": self.limits.told(NAMED)}
        return {"limit_s": self._timeout_s, "attempts": self._stage.retry.attempts, **mine}

    async def take(self, batch: Sequence[Delivery]) -> None:
        """Bring a batch as far as it goes; async handlers go on after this has returned."""
        flow = self._flow
        suspects = False
        for d in batch:
            d.identify(flow)
            suspects = suspects or d.claimable or d.tracker.horizon != NO_HORIZON
        if suspects:  # 3
            skipped = await self._gate.screen(batch)
            self._finished.extend(skipped)
            gone = set(skipped)
            batch = [d for d in batch if d not in gone]
        if suspects or self._control.cancelled:
            batch = self._without_cancelled(batch)
        if self._journal is not None and (self._journal.on or self._kept):
            self._kept.extend(batch)
            await self._start_kept()
        elif self._is_async:
            for d in batch:
                self._admit(d)
        else:
            await self._run_all_inline(batch)
        self._flush()

    async def _start_kept(self) -> None:
        """Write down and start what came, in its order; what a person's pause keeps from its start
        must not count as started."""
        journal = self._journal
        if journal is None or self._starting:
            return
        self._starting = True
        size = self._stage.concurrency if self._is_async else _SLICE_RECORDS
        try:
            while self._kept and not self._shut:
                batch, self._kept = self._kept, []
                await journal.take(batch, size, self._start_one, self._bury)
        finally:
            self._starting = False

    def _start_one(self, d: Delivery) -> None:
        """Start what the journal has written down."""
        reach("journal.begun")
        if self._is_async:
            self._admit(d)
        else:
            self._run_inline(d)
        self._flush()

    def _bury(self, d: Delivery, error: JobError) -> None:
        """A dead letter without a run."""
        if not self._runs.cancelled(d):
            self._runs.give_up(d, GiveUp(error))
        reach("journal.buried")
        if self._lanes.busy(d.key):
            self._wait(d)
        else:
            self._complete(d)

    # -- orders ------------------------------------------------------------------------------

    def on_order(self) -> None:
        """Jobs were cancelled, or this stage was paused or goes on: see to what is in work."""
        self._shut = self._control.pauses(*self._key) is not None and not self._stopping
        if self._control.cancelled:
            self._kept = list(self._without_cancelled(self._kept))
            self._cancel_in_work()
        if self._runnable:
            self._start_more()
        if self._kept and self._journal is not None and not self._shut:
            self._journal.spawn(self._start_kept)

    def _cancel_in_work(self) -> None:
        """Waits end now, runs get their grace, and what has not begun will not begin."""
        for d in list(self._lanes.active):
            if self._control.cancels(d.job_id, d.shielded) is None or d.result is not None:
                continue
            if d.task is not None:
                self._cutter.start(d)
            elif d.tracker.live and self._runs.cancelled(d) and d.timer is not None:
                d.timer.cancel()
                d.timer = None
                self._end(d)
        # No slot and no pause keeps those that have a result.
        over = [d for d in self._runnable if d.result is not None]
        self._runnable = deque(d for d in self._runnable if d.result is None)
        for d in over:
            self._end(d)

    def _without_cancelled(self, batch: Sequence[Delivery]) -> Sequence[Delivery]:
        """Give those whose jobs are cancelled their results; the others."""
        others = []
        for d in batch:
            if d.message.value() is None or d.fault is not None or not self._runs.cancelled(d):
                others.append(d)
            elif self._lanes.busy(d.key):
                self._wait(d)
            else:
                self._complete(d)
        return others

    # -- 4: inline ---------------------------------------------------------------------------

    async def _run_all_inline(self, batch: Sequence[Delivery]) -> None:
        count, turn_us = 0, now_us() + _SLICE_US
        for d in batch:
            self._run_inline(d)
            count += 1
            if count == _SLICE_RECORDS or d.started_us > turn_us:
                self._flush()
                await asyncio.sleep(0)
                count, turn_us = 0, now_us() + _SLICE_US

    def _run_inline(self, d: Delivery) -> None:
        """A sync handler runs here and now, unless an earlier record of its job is still waiting
        for a retry."""
        if not d.tracker.live or self._stopping:
            self._budget.release([d])
            return
        if self._lanes.active and self._lanes.busy(d.key):
            self._wait(d)
            return
        if self._runs.prepare(d):
            if self._pause.reason or self._shut or self.limits is not None:
                self._lanes.enter(d)
                self._runnable.append(d)
                self._start_more()
                return
            wait_s = self._attempt_inline(d)
            if wait_s is not None:
                self._lanes.enter(d)
                self._later(d, wait_s)
                return
        self._finished.append(d)

    def _attempt_inline(self, d: Delivery) -> float | None:
        """One run; seconds until the next, or None when `d.result` is final."""
        job = self._runs.begin(d)
        try:
            outcome = self._hop_context.call(self._handler, d.model, job)  # 2
            self._runs.conclude(d, outcome)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            return self._runs.judge(d, e)
        finally:
            if self._pause.probe is d:
                self._pause.passed(d)
        return None

    # -- 4: concurrent -----------------------------------------------------------------------

    def _admit(self, d: Delivery) -> None:
        prepared = self._runs.prepare(d)
        # A dead letter, too, comes after the earlier records of its job.
        if self._lanes.busy(d.key):
            self._wait(d)
            return
        if not prepared:
            self._complete(d)
            return
        self._lanes.enter(d)
        self._runnable.append(d)
        self._start_more()

    def _start_more(self) -> None:
        limit, inline = self._stage.concurrency, 0
        while self._runnable and self._running < limit and not self._slice_due:
            if inline == _SLICE_RECORDS:
                self._slice_due = True
                asyncio.get_running_loop().call_soon(self._next_slice)
                return
            d = self._runnable[0]
            if (self._pause.reason is not None or self._shut) and self._held(d):
                return
            self._runnable.popleft()
            if d.result is not None or d.model is None:
                self._end(d)
            elif self._dropped(d):
                self._leave(d)
            elif self.limits is not None and not self._within_limits(self.limits, d):
                continue
            elif self._is_async:
                self._running += 1
                # Often called by a run that has just ended: its context must not be inherited.
                run, context = self._run_concurrent(d), self._hop_context.fresh()
                d.task = asyncio.get_running_loop().create_task(run, context=context)
            else:
                inline += 1
                wait_s = self._attempt_inline(d)
                if wait_s is None:
                    self._end(d)
                else:
                    self._later(d, wait_s)

    def _next_slice(self) -> None:
        self._slice_due = False
        self._start_more()

    def _held(self, d: Delivery) -> bool:
        """True when the stage's pause holds `d` back: everything that would start its handler, but
        for one probe where the pause is not a person's."""
        if d.result is not None or d.model is None or self._stopping or not d.tracker.live:
            return False
        if self._shut:
            return True
        return self._pause.probe is not d and not self._pause.may_start(d)

    # -- limits (`streams.limits.gate.Stage`) --------------------------------------------------

    def _within_limits(self, limits: Gate, d: Delivery) -> bool:
        try:
            return limits.may_start(d, first=self._pause.probe is d)
        except BadRecord as e:
            self._pause.dropped(d)
            self._runs.give_up(d, GiveUp(job_error(e.kind, e.message)))
            self._end(d)
            return False

    def room(self, run_s: float) -> int:
        """How many handlers could be started now, if a run takes so long."""
        if self._is_async:
            return self._stage.concurrency - self._running
        return min(self._stage.concurrency, 1 + int(_INLINE_S / max(run_s, 0.001)))

    def allows(self, d: Delivery) -> bool:
        """Whether `d` may start but for its limits."""
        if self._shut:
            return False
        return self._pause.reason is None or self._pause.probe is d

    def resume(self, d: Delivery) -> None:
        """The moment of `d` has come."""
        self._runnable.appendleft(d)
        self._start_more()

    def send_away(self, d: Delivery, why: str, wait_s: float) -> None:
        """Its limits keep `d` waiting for long: a committed wait, which counts no attempt."""
        d.why = job_error(LIMITED, why)
        # No run: what it spent here was a wait.
        d.started_us = now_us()
        self._runs.wait_for_timer(d, wait_s)
        self._end(d)

    async def _run_concurrent(self, d: Delivery) -> None:
        if self.limits is not None and not self.limits.begins(d):
            self._running -= 1
            d.task = None
            self._start_more()
            return
        job = self._runs.begin(d)
        self._hop_context.enter(job)  # 2
        wait_s: float | None = None
        self._time_limit.start(d)
        try:
            outcome = await self._handler(d.model, job)
            self._runs.conclude(d, outcome)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            if self._cutter.end(d) and d.tracker.live and not self._stopping:
                wait_s = self._runs.judge(d, e)
            elif self._time_limit.end(d):
                wait_s = self._runs.judge(d, TimeoutError(f"no result after {self._timeout_s} s"))
            elif isinstance(e, asyncio.CancelledError) and d.task.cancelling():
                self._running -= 1
                # Stopped, not failed: this run does not count.
                d.attempt -= 1
                self._drop(d)
                self._start_more()
                return
            else:
                wait_s = self._runs.judge(d, e)
        self._time_limit.end(d)
        self._cutter.end(d)
        self._running -= 1
        d.task = None
        if self._pause.probe is d:
            self._pause.passed(d)
        if wait_s is None:
            self._end(d)
        elif self._dropped(d):
            self._leave(d)
        else:
            self._later(d, wait_s)
        self._start_more()

    # -- order per job -----------------------------------------------------------------------

    def _wait(self, d: Delivery) -> None:
        if d.model is None and d.result is None:
            self._runs.prepare(d)
        self._lanes.wait(d)

    def _end(self, d: Delivery) -> None:
        self._complete(d)
        self._leave(d)

    def _leave(self, d: Delivery) -> None:
        """`d` is no longer in work: the next record of its job may run."""
        if d.ticket is not None and self.limits is not None:
            self.limits.over(d)
        following = self._lanes.leave(d)
        if following is not None:
            if following.result is None:
                self._runnable.append(following)
            else:
                self._runnable.appendleft(following)
            # From the loop, not from here: a long lane must not become a deep stack.
            asyncio.get_running_loop().call_soon(self._start_more)
        if not self._lanes.active:
            self._idle.set()

    def _later(self, d: Delivery, wait_s: float) -> None:
        if d.ticket is not None and self.limits is not None:
            self.limits.over(d)
        loop = asyncio.get_running_loop()
        d.again_at = loop.time() + wait_s
        d.timer = loop.call_later(wait_s, self._again, d)

    def _again(self, d: Delivery) -> None:
        d.timer = None
        if self._pause.reason is None and not self._shut:
            self._runnable.appendleft(d)
        else:
            # Behind the others: were it the record and not the world, it must not be each probe.
            self._runnable.append(d)
        self._start_more()

    # -- 6 and 7 -----------------------------------------------------------------------------

    def _complete(self, d: Delivery) -> None:
        self._finished.append(d)
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._finished:
            reach("stage.handled")
            self._commits.add(self._finished)
            self._finished = []

    def _dropped(self, d: Delivery) -> bool:
        """True, and the delivery given back, when its partition is gone or the worker stops."""
        if d.tracker.live and not self._stopping:
            return False
        self._give_back(d)
        return True

    def _give_back(self, d: Delivery, wait_s: float = 0.0) -> None:
        """`d` runs no more here. A stop must not forget attempts that only memory knows of, so they
        go into a timer; the partition of another owner is not ours to write for."""
        self._pause.dropped(d)
        if d.tracker.live and d.attempt > d.attempts_told:
            self._runs.wait_for_timer(d, wait_s)
            self._complete(d)
        else:
            self._budget.release([d])

    def _drop(self, d: Delivery, wait_s: float = 0.0) -> None:
        self._give_back(d, wait_s)
        self._leave(d)

    def end(self, trackers: Sequence[Tracker]) -> None:
        """Partitions are gone: cancel what is in work for them; the next owner does it again."""
        gone = set(trackers)
        self._cancel([d for d in self._lanes.active if d.tracker in gone])
        if self.limits is not None:
            self._runnable.extend(self.limits.recall(every=False))
        self._budget.release([d for d in self._kept if d.tracker in gone])
        self._kept = [d for d in self._kept if d.tracker not in gone]
        # A pause would keep those that have not begun.
        self._runnable = deque(sorted(self._runnable, key=lambda d: d.tracker.live))
        self._start_more()

    def _cancel(self, deliveries: Sequence[Delivery]) -> None:
        for d in deliveries:
            if d.timer is not None:
                d.timer.cancel()
                d.timer = None
                self._drop(d, d.again_at - asyncio.get_running_loop().time())
            elif d.task is not None:
                d.task.cancel()
                if getcoroutinestate(d.task.get_coro()) == CORO_CREATED:
                    # Its body never begins, so it cannot see that it is over.
                    self._running -= 1
                    d.task = None
                    self._drop(d)

    async def stop(self, grace_s: float) -> None:
        """Start nothing new, give running handlers `grace_s`, cancel the rest.

        Waits in place become timers, so that their attempts are not forgotten.
        """
        self._stopping = True
        self._pause.close()
        self._budget.release(self._kept)
        self._kept = []
        self._shut = False
        if self._journal is not None:
            self._journal.stop()
        self._cancel([d for d in self._lanes.active if d.timer is not None])
        if self.limits is not None:
            self._runnable.extend(self.limits.recall(every=True))
        self._start_more()
        for wait_s in (grace_s, _CANCEL_S):
            self._idle.clear()
            if not self._lanes.active:
                break
            try:
                await asyncio.wait_for(self._idle.wait(), wait_s)
            except TimeoutError:
                log.warning("grace_over", stage=self._stage.name, cancelled=len(self._lanes.active))
                self._cancel(list(self._lanes.active))
        self._flush()
