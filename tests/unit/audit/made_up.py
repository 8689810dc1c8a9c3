"""Made-up facts: jobs of a flow with two stages and a sink, whole, to be damaged by tests.

Some fork at `take` into children, which end at `work`; the join hands on to `work`, too. Others
begin a run at `take`, which calls `work`.
"""

from __future__ import annotations

from typing import Any

from streams.audit.facts import Facts
from streams.audit.rules import Bounds, judge
from streams.audit.wire import Kind

STATE, TAKE, WORK, DONE, TAKE_DLQ, WORK_DLQ, TIMERS, JOIN, JOIN_DLQ = range(1, 10)
NOW, HOUR = 1_700_000_000_000, 3_600_000
#: What is older may be gone, from topics and by compaction.
EXPIRED = NOW - 168 * HOUR
_ROLES = {
    STATE: ("job-state", "state", "", ""),
    TAKE: ("run.take", "stage", "run", "take"),
    WORK: ("run.work", "stage", "run", "work"),
    DONE: ("run.done", "sink", "run", "done"),
    TAKE_DLQ: ("run.take.dlq", "letters", "run", "take"),
    WORK_DLQ: ("run.work.dlq", "letters", "run", "work"),
    TIMERS: ("timers", "timers", "", ""),
    JOIN: ("run.join", "join", "run", "join"),
    JOIN_DLQ: ("run.join.dlq", "letters", "run", "join"),
}


def job(n: int) -> bytes:
    return n.to_bytes(16, "big")


def child(of: bytes, n: int) -> bytes:
    return of + b"/%d" % n


class World:
    """Rows by table; `step` and `record` add, `judged` gives {(rule, job)} with suspects."""

    def __init__(self, jobs: int = 3, *, at_ms: int = NOW - HOUR) -> None:
        self.at_ms = at_ms
        self.parts: dict[int, dict[str, Any]] = {
            n: {"low": 0, "start": 0, "first_ms": at_ms, "head": None} for n in _ROLES
        }
        self.records: list[list[Any]] = []
        self.states: list[list[Any]] = []
        self.letters: list[list[Any]] = []
        self.timers: list[list[Any]] = []
        self.rows: dict[bytes, list[Any]] = {}
        self.history: list[list[Any]] = []
        self.effects: list[list[Any]] = []
        self.targets: list[tuple[str, str]] = []
        self.forks: list[list[Any]] = []
        self.ended: list[list[Any]] = []
        self.branches: list[list[Any]] = []
        self.expected: list[list[Any]] = []
        self.arrivals: list[list[Any]] = []
        self.joins: dict[bytes, list[Any]] = {}
        self.kept: list[list[Any]] = []
        self.run_steps: list[list[Any]] = []
        self.awaited: list[list[Any]] = []
        self.began: list[list[Any]] = []
        self.fired: list[list[Any]] = []
        self.sent: list[list[Any]] = []
        self.runs: dict[bytes, list[Any]] = {}
        self.events: list[list[Any]] = []
        self.finished: list[tuple[int, int, int, int]] = []
        self.gone: list[tuple[Any, ...]] = []
        self.projected = True
        for n in range(jobs):
            self.whole(job(n))

    def whole(self, of: bytes) -> None:
        """A job that went the whole way."""
        self.record(TAKE, of, 0, Kind.SUBMISSION)
        self.step(of, 1, TAKE, WORK)
        self.record(WORK, of, 1)
        self.step(of, 2, WORK, DONE, "done")
        self.record(DONE, of, 2)

    def record(
        self, topic: int, of: bytes, seq: int, kind: Kind = Kind.HAND_OFF, ms: int | None = None
    ) -> list[Any]:
        at = sum(r[0] == topic for r in self.records + self.arrivals)
        row = [topic, 0, at, of, seq, int(kind), self.at_ms if ms is None else ms]
        self.records.append(row)
        if (self.forks or self.runs) and topic == WORK:
            # Before it children may wait.
            self.finished += [(WORK, 0, at, at + 1)] if kind is not Kind.BRANCH else []
        elif topic in (TAKE, WORK, JOIN):
            self.parts[topic]["head"] = at + 1
        return row

    def step(
        self, of: bytes, seq: int, stage: int, to: int | None, status: str = "running"
    ) -> list[Any]:
        """A committed step that consumed the last record of its stage, with row and history."""
        at = len(self.states)
        consumed = max(r[2] for r in self.records + self.arrivals if r[0] == stage)
        content = b"%d" % seq
        row = [STATE, 0, at, of, seq, stage, status, stage, 0, consumed, to, content]
        row += [self.at_ms, self.at_ms, None, 0, 0]
        self.states.append(row)
        self.history.append(row[:14])
        self.rows[of] = [of, seq, stage, status, content, None]
        return row

    def fail(self, of: bytes) -> None:
        """A job that failed at its first step."""
        self.record(TAKE, of, 0, Kind.SUBMISSION)
        row = self.step(of, 1, TAKE, None, "failed")
        self.letters.append([TAKE_DLQ, 0, len(self.letters), of, 1, row[12]])

    def fork(self, of: bytes, expected: int = 2, rule: str = "wait") -> None:
        """A job that waits for its children, none of which is at work yet."""
        self.record(TAKE, of, 0, Kind.SUBMISSION)
        row = self.step(of, 1, TAKE, JOIN, "waiting")
        self.forks.append([*row[:6], WORK, 0, expected, row[12], 0])
        place = self.record(JOIN, of, 1)[:3]
        self.expected.append([*place, of, 1, WORK, 0, expected, rule, None, self.at_ms])
        self.joins[of] = [of, 1, WORK, 0, expected, "open", None, None, self.at_ms]
        for n in range(expected):
            row = self.record(WORK, child(of, n), 0, Kind.BRANCH)
            self.branches.append([*row[:4], of, n, 1, self.at_ms])

    def end(self, of: bytes, n: int, status: str = "done") -> None:
        """Child `n` is over, its parent's join knows."""
        branch = next(b for b in self.branches if b[3] == child(of, n))
        row = self.step(child(of, n), 1, WORK, None, status)
        row[9] = branch[2]
        self.finished.append((WORK, 0, branch[2], branch[2] + 1))
        self.history[-1] = row[:14]
        if status == "failed":
            self.letters.append([WORK_DLQ, 0, len(self.letters), row[3], 1, row[12]])
        self.ended.append([*row[:7], of, n, row[12], 0])
        at = sum(r[0] == JOIN for r in self.records + self.arrivals)
        content = b"%d" % n
        self.arrivals.append([JOIN, 0, at, row[3], of, n, 1, status, content, row[12]])
        self.parts[JOIN]["head"] = at + 1
        if of in self.runs:
            self._happened(self.arrivals[-1], of, "call", str(n), status, content)
        else:
            self.kept.append([of, n, 1, status, content])

    def join(self, of: bytes, seq: int = 2) -> None:
        """By the last record of the join topic it is handed on, and done."""
        self.step(of, seq, JOIN, WORK)
        came = [k[3] for k in self.kept if k[0] == of]
        done = came.count("done")
        self.joins[of][5:8] = ["joined", done, len(came) - done]
        self.record(WORK, of, seq)
        self.step(of, seq + 1, WORK, None, "done")

    def forked(self, of: bytes) -> None:
        """A job that forked into two and went the whole way."""
        self.fork(of)
        self.end(of, 1)
        self.end(of, 0)
        self.join(of)

    def begin(self, of: bytes) -> None:
        """A job whose run has begun, and is not moved on yet."""
        self.record(TAKE, of, 0, Kind.SUBMISSION)
        self._run_step(self.step(of, 1, TAKE, JOIN, "waiting"))
        self.runs[of] = [of, 1, "open", self.at_ms]
        place = self.record(JOIN, of, 1)[:3]
        self.began.append([*place, of, 1, TAKE, self.at_ms])
        self._happened(place, of, "start")

    def move(
        self,
        of: bytes,
        seq: int,
        calls: int = 0,
        waits: tuple[tuple[str, bool], ...] = (),
        *,
        end: str | None = None,
    ) -> None:
        """By the last record of the join topic its run goes on, or ends with a status."""
        row = self.step(of, seq, JOIN, DONE if end == "running" else None, end or "waiting")
        first = sum(b[4] == of for b in self.branches)
        self._run_step(row, first, calls, end is not None)
        self.events[-1][9] = seq
        for n in range(first, first + calls):
            it = self.record(WORK, child(of, n), 0, Kind.BRANCH)
            self.branches.append([*it[:4], of, n, seq, self.at_ms])
        self.awaited += [[of, seq, *each] for each in waits]
        for n, (_, due) in enumerate(waits):
            if due:
                self.timers.append([TIMERS, 0, len(self.timers), of, 1, NOW + HOUR, "run.join", n])
        if end == "running":
            self.record(DONE, of, seq)
        if end == "failed":
            self.letters.append([JOIN_DLQ, 0, len(self.letters), of, seq, row[12]])
        if end is not None:
            self.runs[of][2] = "failed" if end == "failed" else "ended"

    def fire(self, of: bytes, n: int = 0) -> None:
        """The time of the run's command `n` has come."""
        place = self.record(JOIN, of, 1, Kind.TIMER)[:3]
        self.fired.append([*place, of, 1, n, self.at_ms])
        self._happened(place, of, "timer", str(n))

    def signal(self, of: bytes, name: str = "approval") -> None:
        place = self.record(JOIN, of, 0, Kind.SIGNAL)[:3]
        number = f"s{len(self.sent)}"
        self.sent.append([*place, of, number, name, self.at_ms])
        self._happened(place, of, "signal", number, name)

    def ran(self, of: bytes) -> None:
        """A job whose run called two, slept, was signalled, and went the whole way."""
        self.begin(of)
        self.move(of, 2, 2)
        self.end(of, 1)
        self.end(of, 0)
        self.move(of, 3, 0, (("", True), ("approval", False)))
        self.signal(of)
        self.fire(of)
        self.move(of, 4, end="running")

    def _run_step(
        self, row: list[Any], first: int = 0, calls: int = 0, ended: bool = False
    ) -> None:
        self.run_steps.append([*row[:7], TAKE, first, calls, int(ended), row[12], 0])

    def _happened(
        self,
        place: list[Any],
        of: bytes,
        kind: str,
        ref: str = "",
        detail: str = "",
        what: Any = b"",
    ) -> None:
        self.events.append([of, 1, kind, ref, detail, what, *place[:3], None, self.at_ms])

    def effect(self, of: bytes, name: str = "work/mark", **fields: Any) -> list[Any]:
        values = {"status": "done", "idempotent": 1, "calls": 1, "unknown": 0, "over": 1}
        values |= {"twice": 0, **fields}
        row = [f"{of.hex()}:{name}", of, WORK, name, *values.values()]
        self.effects.append(row)
        return row

    def judged(self, **changes: Any) -> set[tuple[str, bytes | None]]:
        facts = self.facts()
        bounds = {"now_ms": NOW, "since_ms": 0, "stuck_ms": 2 * HOUR, "overdue_ms": 60_000}
        judge(facts, Bounds(**{**bounds, "compacted_ms": EXPIRED, "state": STATE, **changes}), _no)
        self.horizon = dict(facts.ask("horizon"))
        suspects = facts.ask("suspects", {"after": 0, "limit": -1})
        found = {(row[1], row[2]) for row in suspects}
        named = facts.ask("findings", {"rule": None, "limit": -1})
        found |= {(row[0], row[1]) for row in named}
        facts.close()
        return found

    def facts(self) -> Facts:
        facts = Facts(":memory:")
        keeps = {TAKE_DLQ: -1, WORK_DLQ: -1, JOIN_DLQ: -1}
        topics = [(n, *of, keeps.get(n, EXPIRED)) for n, of in _ROLES.items()]
        facts.add("topic", topics + self.gone)
        facts.add(
            "part",
            [(n, 0, p["low"], p["start"], p["first_ms"], p["head"]) for n, p in self.parts.items()],
        )
        facts.add("record", self.records)
        facts.add("state", self.states)
        facts.add("fork", self.forks)
        facts.add("ended", self.ended)
        facts.add("branch", self.branches)
        facts.add("expected", self.expected)
        facts.add("arrival", self.arrivals)
        facts.add("kept_join", self.joins.values())
        facts.add("kept_arrival", self.kept)
        facts.add("letter", self.letters)
        facts.add("timer", [[*each, None][:8] for each in self.timers])
        facts.add("run_step", self.run_steps)
        facts.add("awaited", self.awaited)
        facts.add("began", self.began)
        facts.add("fired", self.fired)
        facts.add("sent", self.sent)
        facts.add("kept_run", self.runs.values())
        facts.add("kept_event", self.events)
        facts.add("row", self.rows.values())
        facts.add("history", self.history)
        facts.add("effect", self.effects)
        facts.add("target", self.targets)
        facts.add("finished", self.finished)
        if self.projected:
            facts.add("projected", [(0, max(s[2] for s in self.history) + 1)])
        return facts


def _no(_done: int, _total: int) -> None:
    pass
