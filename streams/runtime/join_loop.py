"""The loop of a flow's join agent (decision 15): whole batches into the set of branches, then the
parents' next steps. Its records are committed as those of a stage are.

1 read → 2 check suspects → 3 apply to Postgres → 4 results of the records whose turn it is → 5
group commit, in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import structlog

from schemas.state import JOIN, job_error
from streams.crashpoints import reach
from streams.errors import BadSetup, BadWorld
from streams.flow import Flow, Stage
from streams.joins.book import Incoming, Turn
from streams.joins.joined import JoinRef
from streams.joins.wire import read
from streams.ledger.suspects import Suspect, SuspectCheck, Verdict
from streams.orchestration.journal import RunTurn
from streams.outcome import Emit
from streams.runtime.account import held
from streams.runtime.budget import Budget
from streams.runtime.delivery import Delivery
from streams.runtime.group_commit import GroupCommit
from streams.runtime.judge import unusable
from streams.runtime.records import RecordWriter, now_us
from streams.runtime.suspects import SuspectGate
from streams.runtime.tracker import NO_HORIZON, Tracker

log = structlog.get_logger(__name__)
T = TypeVar("T")

Apply = Callable[[Sequence[Incoming]], Awaitable[Sequence[Turn | RunTurn]]]

_PAUSE_S: Final = 0.5
#: More at once save Postgres little.
_BATCH_RECORDS: Final = 4_000


def join_stage(flow: Flow) -> Stage[Any, Any]:
    """The join agent as a stage: what it may hand to is where forks join, what orchestrations end
    in, and what waits. It has no handler."""
    targets = tuple(dict.fromkeys(to for each in flow.stages for to in _led_to(each)))
    return Stage(JOIN, _no_handler, JoinRef, None, emits=targets)


def _led_to(each: Stage[Any, Any]) -> Iterator[str]:
    yield from each.joins
    if each.orchestrates is not None:
        yield from each.emits
    if each.waits:
        yield each.name


def _no_handler(_model: object, _job: object) -> None:
    """Join the branches of forks, and hand their results on."""
    raise AssertionError("the join agent runs no handler")


class JoinLoop:
    """Belongs to the event loop. Nothing that a record says is raised: it is dead-lettered.

    `apply` takes records into Postgres (`streams.runtime.join_service`).
    """

    def __init__(
        self,
        flow: Flow,
        *,
        apply: Apply,
        writer: RecordWriter,
        gate: SuspectGate,
        check: SuspectCheck,
        commits: GroupCommit,
        budget: Budget,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._flow = flow.name.encode()
        self._targets = join_stage(flow).emits
        self._take, self._writer, self._gate, self._check = apply, writer, gate, check
        self._commits, self._budget, self._fail = commits, budget, fail
        self._queue: deque[Delivery] = deque()
        self._working: Sequence[Delivery] = ()
        self._worker: asyncio.Task[None] | None = None
        self._waits: str | None = None
        self._stopping = False

    @property
    def paused(self) -> str | None:
        """Why nothing is joined now though there may be work, or None; for any thread."""
        return self._gate.waits or self._waits

    def held(self) -> dict[str, Any]:
        """What is in its hands, as `streams.runtime.account` spells it."""
        mine = held(set(self._working), now_us(), asyncio.get_running_loop().time())
        return {"limit_s": None, "attempts": 1, **mine}

    async def take(self, batch: Sequence[Delivery]) -> None:
        """Let a batch be brought to its end. While Postgres works on one, others become one."""
        self._queue.extend(batch)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._queue:
                count = min(len(self._queue), _BATCH_RECORDS)
                self._working = batch = [self._queue.popleft() for _ in range(count)]
                if not await self._apply(batch):
                    self._budget.release([*batch, *self._queue])
                    self._queue.clear()
                    return
                reach("join.decided")
                self._commits.add(batch)
        except Exception as e:
            # What a record says is a dead letter, and Postgres away is waited for: a fault of ours.
            self._fail(e)
        finally:
            self._working = ()

    async def _apply(self, batch: Sequence[Delivery]) -> bool:
        """False when the worker stops before Postgres has answered."""
        incoming = [known for d in batch if (known := self._read(d)) is not None]  # 1
        suspects = [d for d in batch if d.claimable or d.tracker.horizon != NO_HORIZON]
        if suspects:  # 2
            places = {_place(d) for d in await self._gate.screen(suspects)}
            incoming = [x for x in incoming if x.place not in places]
        turns = await self._persist(lambda: self._take(incoming))  # 3
        if turns is None:
            return False
        by_place = {_place(d): d for d in batch}
        taken = [(by_place[turn.place], turn) for turn in turns]
        over = await self._finished(taken) if suspects else set()
        if over is None:
            return False
        for n, (d, turn) in enumerate(taken):  # 4
            if n not in over:
                self._conclude(d, turn)
        return True

    def _read(self, d: Delivery) -> Incoming | None:
        """What `d` says; None for a tombstone and for what is no record of a join."""
        d.attempt, d.started_us, d.born_us = 1, now_us(), d.produced_us
        headers = d.raw_headers()
        value = d.message.value()
        if value is None:
            return None
        found = d.fault or read(d.message.key(), headers, value, self._flow)
        if isinstance(found, str):
            self._bury(d, found)
            return None
        d.identify_parent(headers)
        return Incoming(d.job_id, _place(d), found, d.produced_us)

    def _bury(self, d: Delivery, fault: str) -> None:
        d.stand_alone()
        fate = unusable(d.place, fault)
        self._writer.fail(d, fate.error, now_us(), fate.status)

    async def _finished(self, taken: Sequence[tuple[Delivery, Turn | RunTurn]]) -> set[int] | None:
        """Of turns after the group was reset: those whose step was done before."""
        suspects = [
            Suspect(
                turn.parent,
                turn.seq,
                d.tracker.topic_id,
                d.tracker.partition,
                d.offset,
                False,
                True,
            )
            for d, turn in taken
        ]
        verdicts = await self._persist(lambda: self._check.check(suspects))
        if verdicts is None:
            return None
        return {n for n, verdict in enumerate(verdicts) if verdict is not Verdict.RUN}

    def _conclude(self, d: Delivery, turn: Turn | RunTurn) -> None:
        """The parent's next step is the result of `d`."""
        if isinstance(turn, RunTurn):
            self._advance(d, turn)
        else:
            self._join(d, turn)

    def _advance(self, d: Delivery, turn: RunTurn) -> None:
        d.job_id, d.key, d.seq = turn.parent, turn.parent.encode(), turn.seq
        d.born_us = turn.born_us or d.born_us
        d.keys_of, d.children = turn.keys_of, turn.children
        self._writer.advance(d, turn, now_us())
        log.debug("run", job=turn.parent, run=turn.run, stage=turn.stage, seq=turn.seq)

    def _join(self, d: Delivery, turn: Turn) -> None:
        ref = turn.ref
        d.job_id, d.key, d.seq = turn.parent, turn.parent.encode(), turn.seq
        d.born_us = turn.born_us or d.born_us
        d.keys_of, d.children = turn.keys_of, ref.first + ref.expected
        if turn.outcome == "joined":
            if turn.stage not in self._targets:
                # Nothing is committed: the release that has the stage goes on from here.
                raise BadSetup(
                    f"Job {turn.parent} forked to be joined by stage {turn.stage}, which this "
                    f"program's flow does not have or never joins into. Run a release that does, "
                    "until no such join is open (`handoff join`)."
                )
            self._writer.conclude(d, Emit(turn.stage, ref), now_us())
        elif turn.outcome == "failed":
            error = job_error("branches_missing", f"Join {ref.id} failed. {turn.reason}")
            self._writer.fail(d, error, now_us())
        else:
            self._writer.wait_for_branches(d, turn.stage, ref.first, ref.expected, now_us())
        log.debug("join", join=ref.id, outcome=turn.outcome, seq=turn.seq)

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """The answer, however long Postgres is away; None when the worker stops first."""
        while not self._stopping:
            try:
                answer = await ask()
                self._waits = None
                return answer
            except BadWorld as e:
                self._waits = e.message
                log.warning("stage_paused", stage=JOIN, why=e.message)
                await asyncio.sleep(_PAUSE_S)
        return None

    def end(self, trackers: Sequence[Tracker]) -> None:
        """Partitions are gone. What is under way for them may end: sets take no harm, and only
        their next owner can commit."""

    async def stop(self, grace_s: float) -> None:
        """Let what is in hand come to its end."""
        worker = self._worker
        if worker is not None and not worker.done():
            await asyncio.wait((worker,), timeout=grace_s)
            if not worker.done():
                log.warning("grace_over", stage=JOIN, cancelled=len(self._working))
                self._stopping = True
                await asyncio.wait((worker,), timeout=_PAUSE_S)


def _place(d: Delivery) -> tuple[int, int]:
    return d.tracker.partition, d.offset
