"""Made-up facts: jobs of a flow with two stages and a sink, whole, to be damaged by tests."""

from __future__ import annotations

from typing import Any

from streams.audit.facts import Facts
from streams.audit.rules import Bounds, judge
from streams.audit.wire import Kind

STATE, TAKE, WORK, DONE, TAKE_DLQ, WORK_DLQ, TIMERS = range(1, 8)
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
}


def job(n: int) -> bytes:
    return n.to_bytes(16, "big")


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
        at = sum(r[0] == topic for r in self.records)
        row = [topic, 0, at, of, seq, int(kind), self.at_ms if ms is None else ms]
        self.records.append(row)
        if topic in (TAKE, WORK):
            self.parts[topic]["head"] = at + 1
        return row

    def step(
        self, of: bytes, seq: int, stage: int, to: int | None, status: str = "running"
    ) -> list[Any]:
        """A committed step that consumed the last record of its stage, with row and history."""
        at = len(self.states)
        consumed = max(r[2] for r in self.records if r[0] == stage)
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
        keeps = {TAKE_DLQ: -1, WORK_DLQ: -1}
        topics = [(n, *of, keeps.get(n, EXPIRED)) for n, of in _ROLES.items()]
        facts.add("topic", topics + self.gone)
        facts.add(
            "part",
            [(n, 0, p["low"], p["start"], p["first_ms"], p["head"]) for n, p in self.parts.items()],
        )
        facts.add("record", self.records)
        facts.add("state", self.states)
        facts.add("letter", self.letters)
        facts.add("timer", self.timers)
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
