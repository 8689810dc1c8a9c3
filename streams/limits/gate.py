"""The limits of a stage in one process: deliveries wait here until there is a moment to start at.

A delivery that waits holds no place among the handlers. Those who wait for the same keys stand in
one *line*; one task asks Postgres for moments (`streams.limits.rows`) for all lines together, and
takes as many as the stage has places for. A delivery starts at its moment or a little later
(`Limit.window_us`); one that cannot waits for another moment. Too many in a line are sent away: a
committed wait with a timer, which counts no attempt.

After a crash moments are wasted, and places are free again when their lease has ended. While
Postgres is away nothing that is limited starts. All methods belong to the event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from streams.errors import BadWorld
from streams.limits.clock import ServerClock
from streams.limits.limit import Claim, Limit
from streams.limits.rows import LEASE_S, Answer, Question
from streams.limits.schedule import LOOKAHEAD_US, Ask, Given

if TYPE_CHECKING:
    from streams.runtime.delivery import Delivery

log = structlog.get_logger(__name__)

#: Lines that one question is about, at most.
_LINES: Final = 500
#: In a line wait as many as may start in so many seconds, and a bounded number; of those who come
#: back from being sent away ten times as many, so that they are not sent away again and again.
_LINE_S: Final = 5.0
_LINE_MOST: Final = 1_000
_BACK_TIMES: Final = 10
#: So long does nobody wait in memory.
_PATIENCE_S: Final = 60.0
#: Between two questions, so that one is about all who came meanwhile.
_GATHER_S: Final = 0.005
_GATHER_LINE_S: Final = 5e-6
#: How soon to ask again when places are missing, or Postgres.
_AGAIN_S: Final = 0.2
_PAUSE_S: Final = 0.5
_LONGEST_S: Final = 10.0
#: How long before a moment it must be known: twice what an answer takes, within bounds.
_LEAST_LEAD_US: Final = 15_000
_MOST_LEAD_US: Final = 2_000_000
#: On top, where starts are written down first.
_JOURNAL_LEAD_US: Final = 150_000
#: How long a place without a moment waits to be taken up.
_PLACE_US: Final = 2_000_000
_SAY_EVERY_S: Final = 5.0


class Line:
    """Those who wait for the same claims, first come first."""

    __slots__ = ("ask_at", "away", "claims", "most", "spacing_us", "waiting", "window_us")

    def __init__(self, claims: tuple[Claim, ...], limits: Sequence[Limit]) -> None:
        self.claims = claims
        self.waiting: deque[Delivery] = deque()
        #: To be sent away.
        self.away: deque[Delivery] = deque()
        #: When it makes sense to ask for it again (`time.monotonic`).
        self.ask_at = 0.0
        self.most = min(_most(limit) for limit in limits)
        rated = [limit for limit in limits if limit.rate is not None]
        #: For how long a moment can be taken up. None: there is a place, and no moment.
        self.window_us = min((limit.window_us for limit in rated), default=None)
        self.spacing_us = max((limit.spacing_us or 0 for limit in rated), default=0)


class Ticket:
    """What a delivery that is limited has: its line, and once it was given one, a moment."""

    __slots__ = ("begun_us", "due", "line", "since", "timer", "window")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.since = time.monotonic()
        #: When it may start, microseconds of `time.monotonic`.
        self.window: tuple[int, int] | None = None
        self.timer: asyncio.TimerHandle | None = None
        #: Its moment has come: it is in the loop's hands.
        self.due = False
        self.begun_us = 0


class Stage(Protocol):
    """What the gate asks of the stage's loop."""

    def room(self, run_s: float) -> int:
        """How many handlers could be started now, if a run takes so long."""
        ...

    def allows(self, d: Delivery) -> bool:
        """Whether `d` may start but for its limits: the stage is not paused, or it is its probe."""
        ...

    def resume(self, d: Delivery) -> None:
        """The moment of `d` has come."""
        ...

    def send_away(self, d: Delivery, why: str, wait_s: float) -> None:
        """`d` is to become a committed wait."""
        ...


class Journal(Protocol):
    """`streams.runtime.stage_journal`, as far as a wait before a start concerns it."""

    @property
    def on(self) -> bool: ...

    open: set[Delivery]

    def make_way(self, d: Delivery) -> None:
        """`d` does not start yet after all."""
        ...

    async def begin_soon(self, deliveries: Sequence[Delivery], timeout_s: float) -> bool:
        """Write down that they start; False, and nothing done, if that cannot begin in time."""
        ...


class Gate:
    """`await start()`, then `may_start` of each delivery, `over` when its run is; `await close()`.

    `ask`: `LimitRows.ask`, from whatever loop. `most`: how many may wait here.
    """

    def __init__(
        self,
        name: str,
        limits: Sequence[Limit],
        ask: Callable[[Question], Awaitable[Answer]],
        stage: Stage,
        *,
        most: int,
        journal: Journal | None = None,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._name, self._limits, self._ask, self._stage = name, limits, ask, stage
        self._most, self._journal, self._fail = most, journal, fail
        self._with_places = {limit.name for limit in limits if limit.concurrency is not None}
        self._words = {limit.name: limit.wording for limit in limits}
        self._lines: dict[tuple[Claim, ...], Line] = {}
        self._waiting = 0
        #: Have a moment and have not begun.
        self._given: set[Delivery] = set()
        #: Places that this process holds, and what Postgres was told of them.
        self._held: Counter[Claim] = Counter()
        self._told: Counter[Claim] = Counter()
        self._renew_at = 0.0
        #: Places that have become free since lines were looked at.
        self._freed: set[Claim] = set()
        self._clock = ServerClock()
        self._answer_us = 0.0
        self._run_us = 0.0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[None]] = set()
        self._said_at = -_SAY_EVERY_S
        #: Why nothing that is limited starts, or None; for any thread.
        self.paused: str | None = None
        #: Since the start: how many had to wait, missed their moment, and were sent away.
        self.waits = self.missed = self.sent_away = 0

    # -- what the loop calls ---------------------------------------------------------------------

    def may_start(self, d: Delivery, *, first: bool = False) -> bool:
        """True: start the handler of `d` now. False: it waits here, before all others of its line
        if it is to be `first`, and will be resumed.

        Raises `BadRecord` when no key can be had of it.
        """
        ticket: Ticket | None = d.ticket
        if ticket is not None:
            return self.begins(d)
        line = self._line_of(d)
        if line is None:
            return True
        d.ticket = Ticket(line)
        self.waits += 1
        if self._journal is not None:
            self._journal.make_way(d)
        back = d.claimable and not d.is_new_job
        most = line.most * _BACK_TIMES if back else line.most
        if first or (len(line.waiting) < most and self._waiting < self._most):
            self._queue(d, line, first=first)
        else:
            line.away.append(d)
        self._changed.set()
        return False

    def begins(self, d: Delivery) -> bool:
        """The last look before the handler of `d`; False: it is too late, `d` waits here again."""
        ticket: Ticket | None = d.ticket
        if ticket is None:
            return True
        now = _now_us()
        assert ticket.window is not None, "who is in the loop's hands has a moment"
        if now <= ticket.window[1]:
            ticket.begun_us = now
            self._given.discard(d)
            return True
        self.missed += 1
        self._wait_again(d, ticket)
        return False

    def over(self, d: Delivery) -> None:
        """The run of `d` has ended, or `d` runs no more."""
        ticket: Ticket = d.ticket
        d.ticket = None
        if ticket.begun_us:
            took = _now_us() - ticket.begun_us
            self._run_us += (took - self._run_us) / (8 if self._run_us else 1)
        self._take_back(d, ticket)
        self._changed.set()

    def recall(self, every: bool) -> list[Delivery]:
        """Those who wait here for a partition that is gone, or all: they are the loop's again."""
        found: list[Delivery] = []
        for line in list(self._lines.values()):
            for queue in (line.waiting, line.away):
                mine = [d for d in queue if every or not d.tracker.live]
                if mine:
                    gone = set(mine)
                    kept = [d for d in queue if d not in gone]
                    queue.clear()
                    queue.extend(kept)
                    self._waiting -= len(mine) if queue is line.waiting else 0
                    found.extend(mine)
        for d in found:
            d.ticket = None
        for d in [d for d in self._given if every or not d.tracker.live]:
            ticket: Ticket = d.ticket
            if not ticket.due:
                d.ticket = None
                self._take_back(d, ticket)
                found.append(d)
        self._changed.set()
        return found

    def told(self, most: int) -> list[tuple[str, float, int, str]]:
        """Of those who wait longest: job, seconds, how many are before it here, for which limit."""
        entries = [
            (d, n)
            for line in self._lines.values()
            for n, d in enumerate(islice(line.waiting, most))
        ]
        entries.sort(key=lambda entry: entry[0].ticket.since)
        now = time.monotonic()
        return [
            (d.job_id, round(now - d.ticket.since, 3), n, self._wording(d.ticket.line))
            for d, n in entries[:most]
        ]

    @property
    def waiting(self) -> int:
        return self._waiting

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Ask no more. Whoever waits here should have been recalled."""
        tasks = [*self._writing, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _work(self) -> None:
        while True:
            self._changed.clear()
            lines, question = self._question()
            if question is None:
                await self._pass_time()
                await self._gather()
                continue
            sent = time.monotonic()
            try:
                answer = await self._ask(question)
            except BadWorld as e:
                self._say(e.message)
                await asyncio.sleep(_PAUSE_S)
                continue
            except Exception as e:
                # Of ours, or a schema that was never migrated.
                self._fail(e)
                return
            self.paused = None
            took_us = (time.monotonic() - sent) * 1e6
            self._answer_us += (took_us - self._answer_us) / (4 if self._answer_us else 1)
            self._take(lines, question, answer)
            await self._gather()

    async def _gather(self) -> None:
        """Each question looks at every line, so thousands of keys are looked at more rarely."""
        await asyncio.sleep(_GATHER_S + len(self._lines) * _GATHER_LINE_S)

    async def _pass_time(self) -> None:
        """Until something changes, or it is time to ask again."""
        times = [line.ask_at for line in self._lines.values() if line.waiting]
        if self._held:
            times.append(self._renew_at)
        wait_s = min(times, default=time.monotonic() + _LONGEST_S) - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, _AGAIN_S / 2)):
                await self._changed.wait()

    def _say(self, why: str) -> None:
        self.paused = f"no handler that is limited starts until Postgres can be asked: {why}"
        if time.monotonic() - self._said_at >= _SAY_EVERY_S:
            self._said_at = time.monotonic()
            log.warning("stage_paused", stage=self._name, why=self.paused)

    # -- asking ----------------------------------------------------------------------------------

    def _question(self) -> tuple[list[Line], Question | None]:
        now = time.monotonic()
        room = self._stage.room(self._run_us / 1e6) - len(self._given)
        lines, asks = [], []
        for line in self._open_lines():
            self._lose_patience(line, now)
            if self._freed and not self._freed.isdisjoint(line.claims):
                line.ask_at = 0.0
            starts = self._ready(line) if room > 0 and line.ask_at <= now else 0
            if starts or line.away:
                lines.append(line)
                asks.append(Ask(line.claims, min(starts, room), len(line.away)))
                if len(lines) == _LINES:
                    break
        self._freed.clear()
        for line in lines:
            # Others come first the next time.
            self._lines[line.claims] = self._lines.pop(line.claims)
        if not asks and self._told == self._held and (now < self._renew_at or not self._held):
            return [], None
        return lines, Question(
            asks, max(room, 0), self._lead_us(), round(self._run_us), +self._held
        )

    def _open_lines(self) -> Iterator[Line]:
        for line in list(self._lines.values()):
            if line.waiting or line.away:
                yield line
            else:
                del self._lines[line.claims]

    def _ready(self, line: Line) -> int:
        """How many of a line could start; one while the stage is paused, if it is the probe."""
        first = [self._stage.allows(d) for d in islice(line.waiting, 2)]
        return len(line.waiting) if all(first) else int(first[0])

    def _lose_patience(self, line: Line, now: float) -> None:
        while line.waiting and now - line.waiting[0].ticket.since > _PATIENCE_S:
            if not self._stage.allows(line.waiting[0]):
                return
            line.away.append(line.waiting.popleft())
            self._waiting -= 1

    def _lead_us(self) -> int:
        lead_us = round(2 * self._answer_us)
        if self._journal is not None and self._journal.on:
            lead_us += _JOURNAL_LEAD_US
        return min(max(lead_us, _LEAST_LEAD_US), _MOST_LEAD_US)

    def _take(self, lines: Sequence[Line], question: Question, answer: Answer) -> None:
        self._told = Counter(question.held)
        self._renew_at = time.monotonic() + LEASE_S / 6
        if answer.server_us and not self._clock.observe(
            answer.sent_us, answer.came_us, answer.server_us
        ):
            log.warning("clock_set", stage=self._name, why="Postgres' clock, or ours, was set")
            self._withdraw()
        to_write: list[Delivery] = []
        for line, ask, given in zip(lines, question.asks, answer.given, strict=True):
            for claim in self._places(line):
                self._told[claim] += len(given.starts)
            to_write += self._give(line, given)
            self._send_away(line, given, answer.server_us)
            line.ask_at = self._ask_at(ask, given, question.lead_us)
        if to_write:
            task = asyncio.create_task(self._write_down(to_write))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def _give(self, line: Line, given: Given) -> list[Delivery]:
        """Hand moments to the first in a line; those whose start is to be written down first."""
        to_write = []
        for at in given.starts:
            if not line.waiting or not self._stage.allows(line.waiting[0]):
                break  # gone meanwhile; a moment is wasted
            d = line.waiting.popleft()
            self._waiting -= 1
            ticket: Ticket = d.ticket
            ticket.window = self._window(line, at)
            self._given.add(d)
            self._held.update(self._places(line))
            journal = self._journal
            if journal is not None and journal.on and d not in journal.open:
                to_write.append(d)
            else:
                self._arm(d, ticket)
        return to_write

    def _window(self, line: Line, at: int) -> tuple[int, int]:
        if line.window_us is None:
            return (now := _now_us()), now + _PLACE_US
        return self._clock.window(at, at + line.window_us)

    def _send_away(self, line: Line, given: Given, server_us: int) -> None:
        for wake_us in given.wakes:
            if not line.away:
                return
            d = line.away.popleft()
            d.ticket = None
            self.sent_away += 1
            wait_us = wake_us - server_us
            why = f"Stage {self._name} has not started it: it waits for the {self._wording(line)}."
            if line.spacing_us:
                why += f" Some {wait_us // line.spacing_us:,} are before it."
            self._stage.send_away(d, why, wait_us / 1e6)

    def _ask_at(self, ask: Ask, given: Given, lead_us: int) -> float:
        """When to ask for a line again."""
        if len(given.starts) >= ask.starts:
            return 0.0
        now = time.monotonic()
        jitter = random.random()  # noqa: S311 - so that no worker always comes first
        if given.next_us is None:
            return now + _AGAIN_S * (0.5 + jitter)
        near_us = self._clock.window(given.next_us, 0)[0] - lead_us - LOOKAHEAD_US // 2
        return now + min(max(near_us / 1e6 - now, 0.0) + jitter * 0.1, _LONGEST_S)

    # -- moments ---------------------------------------------------------------------------------

    async def _write_down(self, deliveries: Sequence[Delivery]) -> None:
        """Let the journal have them, then wait for their moments."""
        assert self._journal is not None
        tickets = {d: d.ticket for d in deliveries}
        until_us = min(t.window[1] for t in tickets.values())
        begun = await self._journal.begin_soon(deliveries, (until_us - _now_us()) / 1e6)
        for d, ticket in tickets.items():
            if d not in self._given or d.ticket is not ticket:
                if begun:
                    self._journal.make_way(d)
            elif begun:
                self._arm(d, ticket)
            else:
                self.missed += 1
                self._wait_again(d, ticket)

    def _arm(self, d: Delivery, ticket: Ticket) -> None:
        assert ticket.window is not None
        wait_s = max(0.0, (ticket.window[0] - _now_us()) / 1e6)
        # Also when it is over already: never from here, where lines are being looked at.
        ticket.timer = asyncio.get_running_loop().call_later(wait_s, self._due, d, ticket)

    def _due(self, d: Delivery, ticket: Ticket) -> None:
        assert ticket.window is not None
        if _now_us() < ticket.window[0]:
            # Timers may come a hair early.
            ticket.timer = asyncio.get_running_loop().call_later(0.001, self._due, d, ticket)
            return
        ticket.timer, ticket.due = None, True
        self._stage.resume(d)

    def _withdraw(self) -> None:
        """Moments by a clock that was set mean nothing."""
        for d in list(self._given):
            ticket: Ticket = d.ticket
            if not ticket.due:
                self._wait_again(d, ticket)

    def _wait_again(self, d: Delivery, ticket: Ticket) -> None:
        """At the head of its line; its place is free."""
        self._take_back(d, ticket)
        if self._journal is not None:
            self._journal.make_way(d)
        ticket.window, ticket.due, ticket.begun_us = None, False, 0
        self._queue(d, ticket.line, first=True)
        ticket.line.ask_at = 0.0
        self._changed.set()

    def _take_back(self, d: Delivery, ticket: Ticket) -> None:
        """Its place is free, its moment is wasted unless it has begun."""
        if ticket.timer is not None:
            ticket.timer.cancel()
            ticket.timer = None
        self._given.discard(d)
        places = self._places(ticket.line)
        if places and ticket.window is not None:
            self._held.subtract(places)
            self._held = +self._held
            self._freed.update(places)

    # -- lines -----------------------------------------------------------------------------------

    def _line_of(self, d: Delivery) -> Line | None:
        claims, mine = [], []
        for limit in self._limits:
            key = limit.key_of(d.model)
            if key is not None:
                claims.append((limit.name, key))
                mine.append(limit)
        if not claims:
            return None
        name = tuple(claims)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(name, mine)
        return line

    def _queue(self, d: Delivery, line: Line, *, first: bool) -> None:
        line = self._lines.setdefault(line.claims, line)
        d.ticket.line = line
        (line.waiting.appendleft if first else line.waiting.append)(d)
        self._waiting += 1

    def _places(self, line: Line) -> list[Claim]:
        if not self._with_places:
            return []
        return [claim for claim in line.claims if claim[0] in self._with_places]

    def _wording(self, line: Line) -> str:
        return " and the ".join(
            self._words[name] + (f" of {key!r}" if key else "") for name, key in line.claims
        )


def _most(limit: Limit) -> int:
    """How many of one key may wait in memory."""
    found = _LINE_MOST
    if limit.rate is not None:
        found = min(found, int(limit.rate * _LINE_S / limit.per.total_seconds()))
    if limit.concurrency is not None:
        found = min(found, 4 * limit.concurrency)
    return max(found, 1)


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
