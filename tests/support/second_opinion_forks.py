"""What `second_opinion` is for the audit's rules of forks and joins: plain dictionaries, no code of
`streams`, a run that is drained and projected. `opinion(rig)` gives (rule, job) pairs.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from tests.support.rig import Rig
from tests.support.topics import Record

Verdicts = set[tuple[str, str]]

KNOWN = frozenset(
    {
        "branch_lost",
        "branch_doubled",
        "branch_orphan",
        "join_lost",
        "join_incomplete",
        "join_doubled",
        "join_differs",
    }
)


class End(NamedTuple):
    """What a join is told of the child `parent`/`n`."""

    parent: str
    n: int
    status: str
    seq: int
    value: bytes
    partition: int
    offset: int

    @property
    def child(self) -> str:
        return f"{self.parent}/{self.n}"


class Facts:
    """All that the topics say of forks."""

    def __init__(self, rig: Rig) -> None:
        names = [stage.name for stage in rig.flow.stages]
        log = rig.log(rig.settings.names.job_state_topic)
        self.states = [json.loads(r.value or b"") for r in log]
        self.steps: dict[tuple[str, int], list[Any]] = defaultdict(list)
        for state in self.states:
            self.steps[state["traceId"], state["seq"]].append(state)
        self.last = dict(sorted(self.steps))
        self.forks = {
            (s["traceId"], s["seq"]): s["fork"]
            for s in self.states
            if "fork" in s and s["stage"] != "join"
        }
        handed = [r for name in names for r in rig.records(name)]
        self.starts = [(r.job, int(r.header("handoff_fork") or 0)) for r in handed if _starts(r)]
        self.by_join = [
            (r.job, r.seq) for r in handed if r.seq and self._stage(r.job, r.seq) == "join"
        ]
        topic = rig.records("join")
        self.ends = [_end(r) for r in topic if r.headers[0][0] == "handoff_arrival"]
        #: Places where the time of a fork was up.
        self.deadlines = {(r.partition, r.offset) for r in topic if r.header("handoff_timer")}
        self.rules = {
            (r.job, r.seq): json.loads(r.value or b"")["rule"]
            for r in topic
            if r.headers[0][0] == "handoff_hop"
        }

    def _stage(self, job: str, seq: int) -> str | None:
        return next((s["stage"] for s in self.steps.get((job, seq), [])), None)

    def joined(self, job: str, after: int) -> list[Any]:
        """The steps by which the fork of step `after` was handed on."""
        later = min([k for j, k in self.forks if j == job and k > after], default=2**31)
        return [
            s
            for s in self.states
            if s["traceId"] == job and after < s["seq"] < later and _hands_on(s)
        ]

    def came(self, job: str, fork: Any, before: tuple[int, int] | None = None) -> dict[int, End]:
        """How each branch of a fork ended, up to a place of the join topic."""
        found: dict[int, End] = {}
        for end in self.ends:
            if end.parent != job or not 0 <= end.n - fork["first"] < fork["expected"]:
                continue
            if before is not None and end.partition == before[0] and end.offset > before[1]:
                continue
            if end.n not in found or end.seq > found[end.n].seq:
                found[end.n] = end
        return found


def opinion(rig: Rig) -> Verdicts:
    facts = Facts(rig)
    found = _branches(facts) | _strangers(facts)
    for (job, seq), fork in facts.forks.items():
        found |= _join(facts, job, seq, fork)
        found |= _set(rig, facts, job, seq, fork)
    return found | {
        ("join_doubled", job) for (job, _), n in Counter(facts.by_join).items() if n > 1
    }


def _starts(record: Record) -> bool:
    return record.headers[0][0] == "handoff_fork"


def _hands_on(state: Any) -> bool:
    return bool(state["stage"] == "join" and state["status"] == "running")


def _end(record: Record) -> End:
    n, status, seq = (record.headers[0][1] or b"").decode().split(";")
    value = record.value or b""
    return End(record.job, int(n), status, int(seq), value, record.partition, record.offset)


def _branches(facts: Facts) -> Verdicts:
    found: Verdicts = set()
    jobs = {job for job, _ in facts.steps}
    for (job, seq), fork in facts.forks.items():
        for n in range(fork["first"], fork["first"] + fork["expected"]):
            child = f"{job}/{n}"
            if (child, seq) not in facts.starts and child not in jobs:
                found.add(("branch_lost", child))
    told = {(e.child, e.seq, e.status) for e in facts.ends}
    for s in facts.states:
        job = s["traceId"]
        ended = "/" in job and s["status"] in ("done", "failed")
        if ended and (job, s["seq"], s["status"]) not in told:
            parent = job.rpartition("/")[0]
            if not any(facts.joined(j, k) for j, k in facts.forks if j == parent):
                found.add(("branch_lost", job))
    return found


def _strangers(facts: Facts) -> Verdicts:
    found = {("branch_doubled", job) for (job, _), n in Counter(facts.starts).items() if n > 1}
    ends = Counter((e.child, e.seq, e.status) for e in facts.ends)
    found |= {("branch_doubled", job) for (job, _, _), n in ends.items() if n > 1}
    for child, seq in facts.starts:
        parent, _, n = child.rpartition("/")
        fork = facts.forks.get((parent, seq))
        if fork is None or not 0 <= int(n) - fork["first"] < fork["expected"]:
            found.add(("branch_orphan", child))
    for end in facts.ends:
        if not any(s["status"] == end.status for s in facts.steps.get((end.child, end.seq), [])):
            found.add(("branch_orphan", end.child))
    return found


def _join(facts: Facts, job: str, seq: int, fork: Any) -> Verdicts:
    joined, rule = facts.joined(job, seq), facts.rules[job, seq]
    if len(joined) > 1:
        return {("join_doubled", job)}
    if joined:
        at = joined[0]["consumed"]
        place = (at["partition"], at["offset"])
        if place in facts.deadlines:
            return set() if rule == "errors" else {("join_incomplete", job)}
        came = facts.came(job, fork, place)
        done = [e for e in came.values() if e.status == "done"]
        enough = len(came if rule == "errors" else done)
        return set() if enough == fork["expected"] else {("join_incomplete", job)}
    if facts.last[job] > seq:
        return set()
    came = facts.came(job, fork)
    failed = [e for e in came.values() if e.status != "done"]
    whole = len(came) == fork["expected"] and (not failed or rule == "errors")
    return {("join_lost", job)} if whole or (rule == "fail" and failed) else set()


def _set(rig: Rig, facts: Facts, job: str, seq: int, fork: Any) -> Verdicts:
    kept = rig.sql("SELECT * FROM joins WHERE parent = %s AND seq = %s", job, seq)
    found: Verdicts = set()
    if not kept or (facts.joined(job, seq) and kept[0]["status"] != "joined"):
        found.add(("join_differs", job))
    rows = rig.sql("SELECT * FROM join_arrivals WHERE parent = %s", job)
    by_number = {row["branch"]: row for row in rows}
    for n in range(fork["first"], fork["first"] + fork["expected"]):
        ends = [e for e in facts.ends if (e.parent, e.n) == (job, n)]
        row = by_number.get(n)
        if row is None:
            differs = bool(ends and kept)
        else:
            mine = (row["status"], row["seq"], bytes(row["value"]))
            differs = mine not in [(e.status, e.seq, e.value) for e in ends]
        if differs:
            found.add(("join_differs", f"{job}/{n}"))
    return found
