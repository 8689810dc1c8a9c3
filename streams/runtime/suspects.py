"""Step 3 of the stage loop: records that may have been seen before are checked, in batches.

A hand-off that our own transaction wrote, read for the first time, cannot be a duplicate and pays
nothing. Suspects are new jobs and what timers bring back (claimed by their coordinates), and
whatever a group that was reset brings again (looked up in what the projection knows as finished).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog

from streams.config import Settings
from streams.errors import BadWorld
from streams.kafka import admin_client, describe_topics, end_offsets
from streams.ledger.suspects import Suspect, SuspectCheck, Verdict
from streams.runtime.delivery import Delivery
from streams.runtime.tracker import Tracker

log = structlog.get_logger(__name__)
T = TypeVar("T")

_PAUSE_S = 0.5


class SuspectGate:
    """Decides which deliveries run. Waits as long as Postgres is away: nothing is guessed."""

    def __init__(self, settings: Settings, group: str, check: SuspectCheck) -> None:
        self._settings, self._group, self._check = settings, group, check
        self.skipped = 0
        #: Why it waits, None while Postgres answers.
        self.waits: str | None = None

    @staticmethod
    def is_suspect(d: Delivery) -> bool:
        horizon = d.tracker.horizon
        return d.claimable or horizon is None or (horizon >= 0 and d.offset <= horizon)

    async def screen(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those of `deliveries` that are duplicates or finished already; the others are to run."""
        for tracker in {d.tracker for d in deliveries}:
            if tracker.horizon is None:
                tracker.horizon = await self._persist(partial(self._horizon, tracker))
        asked = [d for d in deliveries if self.is_suspect(d)]
        suspects = [_suspect(d) for d in asked]
        verdicts = await self._persist(lambda: self._check.check(suspects))
        skipped = [d for d, v in zip(asked, verdicts, strict=True) if v is not Verdict.RUN]
        if skipped:
            self.skipped += len(skipped)
            log.info("skipped", group=self._group, records=len(skipped), total=self.skipped)
        return skipped

    async def _horizon(self, tracker: Tracker) -> int:
        """Highest offset that was ever consumed, once the projection has seen all of job-state."""
        ends = await asyncio.to_thread(self._job_state_ends)
        topic_id, wanted = ends
        while True:
            have = await self._check.projected_offsets(topic_id)
            behind = {p: end for p, end in wanted.items() if have.get(p, 0) < end}
            if not behind:
                return await self._check.consumed_horizon(tracker.topic_id, tracker.partition)
            self.waits = "the projection is behind, and the group's offset was reset"
            log.warning(
                "waiting_for_projection",
                group=self._group,
                partition=tracker.partition,
                behind=behind,
                why="its offset was reset by a tool; what is finished must be known first",
            )
            await asyncio.sleep(_PAUSE_S)

    def _job_state_ends(self) -> tuple[UUID, dict[int, int]]:
        topic = self._settings.names.job_state_topic
        with admin_client(self._settings) as admin:
            facts = describe_topics(self._settings, admin, [topic])[topic]
            return facts.topic_id, end_offsets(self._settings, admin, facts)

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await ask()
                self.waits = None
                return answer
            except BadWorld as e:
                self.waits = e.message
                log.warning("stage_paused", group=self._group, why=e.message)
                await asyncio.sleep(_PAUSE_S)


def _suspect(d: Delivery) -> Suspect:
    tracker, offset = d.tracker, d.message.offset()
    again = tracker.horizon is not None and offset <= tracker.horizon
    return Suspect(d.job_id, d.seq, tracker.topic_id, tracker.partition, offset, d.claimable, again)
