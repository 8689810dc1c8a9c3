"""Redrive: produce, confirm, write down; and stop early if the first ones fail again.

For each letter, in chunks:

1 plan the record → 2 produce it → 3 wait until Kafka has it → 4 record the action in Postgres.

Killed before 4, a letter stays open; the next run sends it again, and the worker skips the second
record, since the first one has claimed the step. So no step is done twice, whoever runs this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final
from uuid import UUID, uuid4

from schemas.state import Status
from streams.config import Settings
from streams.crashpoints import reach
from streams.deadletter.actions import Action, Deed, NextStep, Sent, next_steps, record_sent
from streams.deadletter.find import Head, find
from streams.deadletter.letters import Letter, Place
from streams.deadletter.plan import Redriven, Refused, plan_redrive
from streams.deadletter.reader import Reader
from streams.deadletter.sender import Sender
from streams.postgres import SyncConn, connect

#: Letters that are produced before their actions are written down.
CHUNK_LETTERS: Final = 100
_LOOK_EVERY_S: Final = 0.2


@dataclass(slots=True)
class Report:
    """What became of a call so far: true also when it broke off."""

    batch: UUID
    wanted: int
    redriven: int = 0
    refused: list[Refused] = field(default_factory=list)
    #: Of a canary: those that failed again, and those that gave no answer in time.
    failed_again: list[tuple[Head, NextStep]] = field(default_factory=list)
    silent: list[Head] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Letters that were not tried."""
        return self.wanted - self.redriven - len(self.refused)

    @property
    def stopped(self) -> bool:
        return bool(self.failed_again or self.silent)


@dataclass(frozen=True, slots=True)
class Canary:
    """Redrive the first `letters` alone, then wait up to `timeout_s` for their next steps."""

    letters: int
    timeout_s: float = 300.0


class Redrive:
    """One call: letters in, `report` out. Belongs to one thread.

    `progress` is told the number of letters that are done or refused.
    """

    def __init__(
        self,
        settings: Settings,
        conn: SyncConn,
        deed: Deed,
        *,
        rate_per_s: float | None = None,
        progress: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._conn, self._deed = settings, conn, deed
        self._reader = Reader(settings)
        self._sender = Sender(settings)
        self._rate_per_s, self._progress = rate_per_s, progress
        self._clock, self._sleep = clock, sleep
        self._started_at: float | None = None
        self.report = Report(deed.batch, 0)

    def run(
        self,
        heads: Sequence[Head],
        values: Mapping[Place, bytes] | None = None,
        canary: Canary | None = None,
    ) -> Report:
        """Redrive the letters at `heads`, with other payloads where `values` names them.

        Raises `BadWorld` when Kafka or Postgres fails; `report` then holds what is certain. Run it
        again for the rest.
        """
        self.report.wanted += len(heads)
        first = list(heads[: canary.letters]) if canary else []
        if canary and first:
            sent = self._send(first, values or {})
            self._await_steps([x for x in first if x.place in sent], canary.timeout_s)
            if self.report.stopped:
                return self.report
        self._send(heads[len(first) :], values or {})
        return self.report

    def _send(self, heads: Sequence[Head], values: Mapping[Place, bytes]) -> set[Place]:
        report = self.report
        sent: set[Place] = set()
        gone = {head.place: head for head in heads}
        for chunk in chunks(self._reader.at(list(gone)), self._chunk_letters):
            self._pace()
            for letter in chunk:
                gone.pop(letter.place, None)
            done = self._send_chunk(chunk, values)
            sent.update(x.letter.place for x in done)
            report.redriven += len(done)
            self._progress(report.redriven + len(report.refused))
        report.refused += [
            Refused(x.place, x.job, "It is not there any more.") for x in gone.values()
        ]
        return sent

    def _send_chunk(self, chunk: list[Letter], values: Mapping[Place, bytes]) -> list[Sent]:
        planned: list[tuple[Letter, Redriven]] = []
        for letter in chunk:
            plan = plan_redrive(letter, self._settings.names, values.get(letter.place))  # 1
            if isinstance(plan, Refused):
                self.report.refused.append(plan)
            else:
                planned.append((letter, plan))
        reach("redrive.planned")
        outcome = self._sender.send(planned)  # 2, 3
        reach("redrive.produced")
        record_sent(self._conn, self._deed, outcome.sent)  # 4
        reach("redrive.recorded")
        self.report.refused += outcome.refused
        if outcome.fault is not None:
            # What Kafka has confirmed is written down all the same.
            self.report.redriven += len(outcome.sent)
            raise outcome.fault
        return outcome.sent

    @property
    def _chunk_letters(self) -> int:
        if self._rate_per_s is None:
            return CHUNK_LETTERS
        return max(1, min(CHUNK_LETTERS, int(self._rate_per_s)))

    def _pace(self) -> None:
        """Wait until as many letters as were tried may have been, at the wanted rate."""
        now = self._clock()
        if self._started_at is None:
            self._started_at = now
        if self._rate_per_s is not None:
            tried = self.report.redriven + len(self.report.refused)
            early_s = self._started_at + tried / self._rate_per_s - now
            if early_s > 0:
                self._sleep(early_s)

    def _await_steps(self, heads: Sequence[Head], timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        while True:
            steps = next_steps(self._conn, [(x.job, x.seq) for x in heads])
            if len(steps) == len(heads) or self._clock() > deadline:
                break
            self._sleep(_LOOK_EVERY_S)
        self.report.silent = [x for n, x in enumerate(heads) if n not in steps]
        self.report.failed_again = [
            (heads[n], step) for n, step in sorted(steps.items()) if not went_well(step)
        ]


def went_well(step: NextStep) -> bool:
    """False for a step that failed, was parked or waits for another attempt."""
    return step.status is not Status.FAILED and not (
        step.status is Status.WAITING and step.error is not None
    )


def chunks(letters: Iterable[Letter], size: int) -> Iterator[list[Letter]]:
    """`letters` in lists of at most `size`."""
    letters = iter(letters)
    while chunk := list(islice(letters, size)):
        yield chunk


async def redrive(
    settings: Settings,
    ids: Sequence[str],
    *,
    who: str,
    why: str = "",
    rate_per_s: float | None = None,
) -> Report:
    """Redrive the latest letter of each of `ids` (job ids, their beginnings, or
    `topic/partition/offset`); returns once Kafka has the records and Postgres the actions.

    Ids that name no letter are among `refused`. Safe to repeat: a job goes on once. Raises
    `BadWorld` when Kafka or Postgres fails: some may have been redriven, so call it again.
    """
    return await asyncio.to_thread(partial(_redrive, settings, ids, who, why, rate_per_s))


def _redrive(
    settings: Settings, ids: Sequence[str], who: str, why: str, rate_per_s: float | None
) -> Report:
    found = find(Reader(settings), ids)
    with connect(settings) as conn:
        deed = Deed(Action.REDRIVE, who, why, uuid4())
        call = Redrive(settings, conn, deed, rate_per_s=rate_per_s)
        report = call.run(found.latest)
    unknown = [Refused(Place(text, -1, -1), "", fault) for text, fault in found.faults.items()]
    report.wanted += len(unknown)
    report.refused += unknown
    return report
