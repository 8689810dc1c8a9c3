"""A record of `job-state` as the audit keeps it: who, which step, what it consumed, where it went.

`content` is a hash of the rest, equal for the record, its row in the history and its job row. What
is a valid state is decided by `streams.state.fold`, as for the projection. It costs more than all
else together, so the usual record is taken apart by hand; a test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from schemas.ids import is_job_id, is_root_id
from schemas.state import VERSION, JobState, Status
from streams.state.fold import Rejected, StateRecord, Step, parse

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
#: Control characters are escaped in JSON, so this one stands between fields only.
_BETWEEN: Final = "\x1e"
#: What ends the words of a wait that a timer ends.
_UNTIL: Final = re.compile(r" until \d\S*Z$")
#: Enough to see a difference; collisions are none of an accident's doing.
CONTENT_BYTES: Final = 8

_STATUSES: Final = frozenset(Status)
_INT4_MAX: Final = 2**31 - 1
_INT8_MAX: Final = 2**63 - 1
_TIME_MAX_US: Final = 253_402_300_799_999_999
_TIMES: Final = ("bornUs", "producedUs", "polledUs", "startedUs", "finishedUs")
_UUID_CHARS: Final = 36
#: `2026-05-01T12:00:00Z`, with milliseconds, with microseconds.
_TIME_CHARS: Final = (20, 24, 27)


class ForkFact(NamedTuple):
    """A step that waits for the children `first` to `first` + `expected` - 1."""

    join: str
    first: int
    expected: int


class RunFact(NamedTuple):
    """A step of a run of `stage`: what it called, as children from `first` on; `waits` is what else
    it asked for: the signal's name, empty for a sleep, and whether a timer ends it. `ended`: the
    run is over by it, or was parked."""

    stage: str
    first: int
    calls: int
    waits: tuple[tuple[str, bool], ...]
    ended: bool


class StateFact(NamedTuple):
    """`consumed` is topic's UUID, partition and offset."""

    trace_id: str
    seq: int
    flow: str
    stage: str
    status: str
    consumed: tuple[str, int, int] | None
    to: tuple[str, ...]
    content: bytes
    produced_us: int | None
    parent: str | None
    fork: ForkFact | None = None
    run: RunFact | None = None


class _Unusual(Exception):
    """Not what workers write: the fold decides."""


def quick_state(key: bytes | None, value: bytes) -> StateFact | None:
    """The fact of a state as workers write it; None: `slow_state` decides."""
    try:
        return _quick(key, value)
    except (_Unusual, orjson.JSONDecodeError, orjson.JSONEncodeError, KeyError, TypeError):
        return None


def slow_state(record: StateRecord, value: bytes) -> StateFact | Rejected:
    """The fact of any state, or why it is none. Raises nothing, whatever it holds."""
    step = parse(record, value)
    if isinstance(step, Rejected):
        return step
    # A row has no place for a fork or a run, so it is read once more.
    state = JobState.model_validate_json(value)
    forked, its = state.fork, state.run
    fork = None if forked is None else ForkFact(forked.join, forked.first, forked.expected)
    if its is None:
        return _of_step(step, fork, None)
    run = RunFact(its.stage, its.first, len(its.calls), _waits(its.waits), its.ended)
    return _of_step(step, fork, run)


def _of_step(step: Step, fork: ForkFact | None, run: RunFact | None) -> StateFact:
    error = {} if step.error is None else orjson.loads(step.error)
    born = "" if step.born_us is None else str(step.born_us)
    consumed = None
    if step.consumed_topic_id is not None:
        place = (step.consumed_partition or 0, step.consumed_offset or 0)
        consumed = (str(step.consumed_topic_id), *place)
    content = _content(
        str(step.attempts),
        step.data or "",
        error.get("kind", ""),
        error.get("message", ""),
        step.usage or "",
        step.worker or "",
        ",".join(step.handed_to),
        born,
        _microseconds(step.updated_at),
    )
    return StateFact(
        step.trace_id,
        step.seq,
        step.flow,
        step.stage,
        step.status,
        consumed,
        step.handed_to,
        content,
        step.produced_us,
        step.parent,
        fork,
        run,
    )


def _content(*fields: str) -> bytes:
    """As `pg_history` and `pg_jobs` compute it."""
    return sha256(_BETWEEN.join(fields).encode()).digest()[:CONTENT_BYTES]


def _microseconds(moment: datetime) -> str:
    return str((moment - _EPOCH) // _MICROSECOND)


def _quick(key: bytes | None, value: bytes) -> StateFact:
    if b"\\u0000" in value:
        raise _Unusual
    s: dict[str, Any] = orjson.loads(value)
    trace_id, status, to = s["traceId"], s["status"], s["to"]
    if key is None or trace_id.encode() != key or status not in _STATUSES:
        raise _Unusual
    if not (is_root_id(key) or is_job_id(trace_id)):
        raise _Unusual
    if s["v"] != VERSION or type(s["v"]) is not int or type(to) is not list:
        raise _Unusual
    flow, stage, worker, parent = s["flow"], s["stage"], s.get("worker"), s.get("parent")
    _must_be_text(flow, stage, *to)
    for text in (worker, parent, s.get("link")):
        if text is not None and type(text) is not str:
            raise _Unusual
    error, usage = s.get("error"), s.get("usage")
    kind = message = ""
    if error is not None:
        kind, message = error["kind"], error["message"]
        _must_be_text(kind, message)
    if usage is not None and type(usage) is not dict:
        raise _Unusual
    fork, forked_at = _fork(s.get("fork")), s.get("forkedAt")
    if forked_at is not None and type(forked_at) is not int:
        raise _Unusual
    consumed, times = _consumed(s.get("consumed")), _times(s.get("timing"))
    content = _content(
        str(_number(s["attempts"], 0, _INT4_MAX)),
        _json(s.get("data")),
        kind,
        message,
        _json(usage),
        worker or "",
        ",".join(to),
        str(times[0]) if times else "",
        _moment(s["updatedAt"]),
    )
    return StateFact(
        trace_id,
        _number(s["seq"], 1, _INT4_MAX),
        flow,
        stage,
        status,
        consumed,
        tuple(to),
        content,
        times[1] if times else None,
        parent,
        fork,
        _run(s.get("run")),
    )


def _must_be_text(*found: object) -> None:
    for text in found:
        if type(text) is not str:
            raise _Unusual


def _number(found: Any, least: int, most: int) -> int:
    if type(found) is not int or not least <= found <= most:
        raise _Unusual
    return found


def _consumed(found: Any) -> tuple[str, int, int] | None:
    if found is None:
        return None
    topic_id = found["topicId"]
    _must_be_text(found["topic"], topic_id)
    # Any other spelling of a UUID is for the fold to read.
    if len(topic_id) != _UUID_CHARS or topic_id != topic_id.lower():
        raise _Unusual
    return (
        topic_id,
        _number(found["partition"], 0, _INT4_MAX),
        _number(found["offset"], 0, _INT8_MAX),
    )


def _fork(found: Any) -> ForkFact | None:
    if found is None:
        return None
    join = found["join"]
    _must_be_text(join, found.get("digest", ""))
    first, expected = found["first"], found["expected"]
    return ForkFact(join, _number(first, 0, _INT4_MAX), _number(expected, 0, _INT4_MAX))


def _run(found: Any) -> RunFact | None:
    if found is None:
        return None
    calls, waits, ended = found.get("calls", ()), found.get("waits", ()), found.get("ended", False)
    _must_be_text(found["stage"], found.get("digest", ""), *calls, *waits)
    if type(ended) is not bool:
        raise _Unusual
    first = _number(found["first"], 0, _INT4_MAX)
    return RunFact(found["stage"], first, len(calls), _waits(waits), ended)


def _waits(texts: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """What a step waits for, from its words: `signal approval until 2026-…Z`, `sleep until …Z`."""
    found = []
    for text in texts:
        plain, due = _UNTIL.subn("", text)
        found.append((plain.removeprefix("signal ") if plain != "sleep" else "", bool(due)))
    return tuple(found)


def _times(found: Any) -> list[int]:
    if found is None:
        return []
    times = [found[name] for name in _TIMES]
    for each in times:
        if type(each) is not int:
            raise _Unusual
    if min(times) < 0 or max(times) > _TIME_MAX_US:
        raise _Unusual
    return times


def _json(found: Any) -> str:
    if found is None:
        return ""
    text = orjson.dumps(found)
    # Integers beyond 64 bits have become floats, which are spelled so.
    if b"e+" in text:
        raise _Unusual
    return text.decode()


def _moment(text: str) -> str:
    if len(text) not in _TIME_CHARS or text[-1] != "Z" or text[10] != "T" or text[7] != "-":
        raise _Unusual
    try:
        return _microseconds(datetime.fromisoformat(text))
    except ValueError:
        raise _Unusual from None
