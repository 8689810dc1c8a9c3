"""What a worker runs for each stage: the service behind a Faust agent.

Each service has `run`, the body of its Faust agent, and starts and stops its own threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from streams.config import Settings
from streams.context import EffectRunner
from streams.control import ControlReader
from streams.flow import Flow, Stage
from streams.joins.rows import Results
from streams.kafka import TopicFacts
from streams.ledger.suspects import SuspectCheck
from streams.postgres import Pool
from streams.runtime.account import Account, told
from streams.runtime.budget import Budget
from streams.runtime.delivery import Delivery
from streams.runtime.group_commit import GroupCommit
from streams.runtime.health import AgentFacts
from streams.runtime.journal import Journal
from streams.runtime.ownership import Ownership
from streams.runtime.puller import Puller
from streams.runtime.records import RecordWriter
from streams.runtime.stage_journal import StageJournal
from streams.runtime.stage_loop import StageLoop
from streams.runtime.suspects import SuspectGate
from streams.runtime.tracker import Tracker

log = structlog.get_logger(__name__)

#: What a consumer gets to close when its last commit took all the time there was.
_CLOSE_S = 1.0

Fail = Callable[[BaseException], None]
Put = Callable[[Any], None]


class AgentService(Protocol):
    """A source that feeds a Faust channel and the loop that an agent runs over it."""

    name: str
    topic: str
    #: Its consumer group, or what would be its name where positions are in Postgres.
    group: str
    help: str

    async def start(self, facts: TopicFacts, put: Put, fail: Fail) -> None:
        """Start the threads; `put` delivers a batch to the channel from any thread."""
        ...

    async def run(self, stream: AsyncIterator[Any]) -> None: ...

    def facts(self) -> AgentFacts:
        """What others may know of it; called from any thread."""
        ...

    def account(self) -> Account:
        """What it says of itself with each sign of life; called from the event loop."""
        ...

    async def stop(self) -> None:
        """Finish what is under way within the grace, release the rest."""
        ...


class Loop(Protocol):
    """What brings a stage's deliveries to their ends: `StageLoop`, and `JoinLoop` for forks."""

    @property
    def paused(self) -> str | None: ...

    def held(self) -> dict[str, Any]: ...

    async def take(self, batch: Sequence[Delivery]) -> None: ...

    def end(self, trackers: Sequence[Tracker]) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a loop is made of, beside its stage."""

    facts: TopicFacts
    writer: RecordWriter
    gate: SuspectGate
    check: SuspectCheck
    commits: GroupCommit
    budget: Budget
    journal: StageJournal
    fail: Fail


@dataclass(frozen=True, slots=True)
class Shared:
    """What all stages of a worker have in common."""

    settings: Settings
    #: Slot and incarnation.
    worker: str
    pool: Pool
    effects: EffectRunner
    journal: Journal
    control: ControlReader


class StageService:
    """One stage in one worker."""

    def __init__(self, flow: Flow, stage: Stage[Any, Any], shared: Shared) -> None:
        settings = shared.settings
        self._flow, self._stage, self._settings = flow, stage, settings
        self._worker, self._pool, self._effects = shared.worker, shared.pool, shared.effects
        self._journal, self._control = shared.journal, shared.control
        self.name = stage.name
        self.topic = settings.names.stage_topic(flow.name, stage.name)
        self.group = settings.names.stage_group(flow.name, stage.name)
        self.help = (stage.handler.__doc__ or "").strip().split("\n")[0]
        self._loop: Loop | None = None
        self._commits: GroupCommit | None = None
        self._puller: Puller | None = None
        self.ownership = Ownership()

    async def start(self, facts: TopicFacts, put: Put, fail: Fail) -> None:
        settings = self._settings
        if self._stage.prepare is not None:
            await asyncio.to_thread(self._stage.prepare)
        group, ownership = self.group, self.ownership
        member = settings.names.member(group, settings.slot)
        event_loop = asyncio.get_running_loop()
        journal = StageJournal(
            self._journal, self.name, facts, ownership, settings.max_deliveries, fail
        )
        budget = Budget(
            settings.max_in_flight_records, settings.max_in_flight_bytes, journal.released
        )
        writer = RecordWriter(self._flow, self._stage, settings, self._worker)
        commits = GroupCommit(
            settings,
            facts,
            group,
            member,
            ownership,
            write=writer.records,
            in_flight=lambda: budget.records,
            release=budget.release,
            fail=fail,
        )
        check = SuspectCheck(self._pool, settings, self._flow.name, self._stage.name)
        gate = SuspectGate(settings, group, check)
        loop = self._make_loop(
            LoopParts(facts, writer, gate, check, commits, budget, journal, fail)
        )
        self._loop, self._commits = loop, commits

        def ended(trackers: Sequence[Tracker]) -> None:
            event_loop.call_soon_threadsafe(loop.end, trackers)

        self._puller = Puller(
            settings,
            facts,
            group,
            ownership=ownership,
            commits=commits,
            budget=budget,
            deliver=put,
            ended=ended,
            fail=fail,
        )
        # The predecessor's open transaction is ended before offsets are read.
        await asyncio.to_thread(commits.start)
        self._puller.start()

    def _make_loop(self, parts: LoopParts) -> Loop:
        loop = StageLoop(
            self._flow,
            self._stage,
            self._settings,
            writer=parts.writer,
            gate=parts.gate,
            effects=self._effects,
            commits=parts.commits,
            budget=parts.budget,
            journal=parts.journal,
            branches=Results(self._pool, self._settings),
            control=self._control.standing,
        )
        events = asyncio.get_running_loop()
        self._control.listen(lambda _: events.call_soon_threadsafe(loop.on_order))
        return loop

    async def run(self, stream: AsyncIterator[Sequence[Delivery]]) -> None:
        async for batch in stream:
            assert self._loop is not None
            await self._loop.take(batch)

    def facts(self) -> AgentFacts:
        paused = self._loop.paused if self._loop is not None else None
        return AgentFacts(self._puller, self._commits, paused)

    def account(self) -> Account:
        if self._loop is None:
            return Account()
        with self.ownership.lock:
            read = {str(p): t.position for p, t in self.ownership.trackers.items()}
        return told(self._loop.paused, {**self._loop.held(), "read": read})

    async def stop(self) -> None:
        if self._puller is None or self._loop is None or self._commits is None:
            return
        self._puller.quiesce()
        await self._loop.stop(self._settings.grace_s)
        timeout_s, started_at = self._settings.commit_timeout_s, time.monotonic()
        # Finished work is committed while the consumer is still a member, then the consumer closes.
        if not await asyncio.to_thread(self._commits.stop, timeout_s):
            log.warning("commit_unfinished", stage=self.name, timeout_s=timeout_s)
        left_s = max(_CLOSE_S, started_at + timeout_s - time.monotonic())
        await asyncio.to_thread(self._puller.stop, left_s)
