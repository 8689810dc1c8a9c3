"""What a record of `<flow>.join` claims to be. Pure.

Written from the wire's description (decision 15), not shared with the join agent: a test holds the
two readings together. Its key is the id of the parent.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from schemas import headers as h
from schemas.ids import MAX_CHILDREN, child_id, id_from_coordinates, is_job_id
from streams.audit.states import CONTENT_BYTES
from streams.audit.wire import Claim, Kind, headers_of, pack
from streams.kafka import Record

_ENDS: Final = {b"done": "done", b"failed": "failed", b"cancelled": "cancelled"}
_RULES: Final = ("wait", "fail", "errors")
#: Ten years: no wait is longer.
_MAX_WAIT_MS: Final = 3_652 * 86_400_000
_MAX_SEQ: Final = 2**31 - 2
_MAX_BRANCHES: Final = 10_000
_DIGITS: Final = 16
_PARTS: Final = 3


class Arrived(NamedTuple):
    """The child `number` of `parent` is over: its step `seq` ended it. `content` is a hash of its
    result or error."""

    child: bytes
    parent: bytes
    number: int
    seq: int
    status: str
    content: bytes


class Expected(NamedTuple):
    """Step `seq` of `parent` forked the children `first` to `first` + `expected` - 1, for the stage
    `stage`."""

    parent: bytes
    seq: int
    stage: str
    first: int
    expected: int
    rule: str
    deadline_ms: int | None


class Began(NamedTuple):
    """Step `seq` of `parent` began a run, or a wait, of the stage `stage`."""

    parent: bytes
    seq: int
    stage: str


class Fired(NamedTuple):
    """The time of the command `n` has come, of the run that step `seq` of `parent` began."""

    parent: bytes
    seq: int
    n: int


class Sent(NamedTuple):
    """A signal `name` to `parent`; `id` is the signal's own."""

    parent: bytes
    id: str
    name: str


Found = Arrived | Expected | Began | Fired | Sent | Claim


def read_join(record: Record, flow: bytes, topic_id: UUID) -> Found:
    """An end of a child, what a fork expects, what a run is told, or any other: a deadline that
    came back is a `TIMER`, what an operator brought back a `REDRIVE`, and what the agent
    dead-letters is `UNUSABLE`."""
    place = id_from_coordinates(topic_id, record.partition(), record.offset())
    value = record.value()
    if value is None:
        return Claim(pack(place), 0, Kind.TOMBSTONE)
    found = _read(record, value, flow)
    return Claim(pack(place), 0, Kind.UNUSABLE) if found is None else found


def _read(record: Record, value: bytes, flow: bytes) -> Found | None:
    try:
        parent = (record.key() or b"").decode()
    except UnicodeDecodeError:
        return None
    if not is_job_id(parent):
        return None
    headers = headers_of(record)
    if headers and headers[0][0] == h.ARRIVAL:
        return _arrived(parent, headers[0][1], value)
    if headers and headers[0][0] == h.SENT:
        return _sent(parent, headers[0][1], value)
    return _of_the_parent(parent, dict(h.spelled_out(headers)), value, flow)


def _of_the_parent(
    parent: str, found: dict[str, bytes | None], value: bytes, flow: bytes
) -> Found | None:
    seq = _number(found.get(h.SEQ), _MAX_SEQ)
    if seq < 1 or found.get(h.FLOW) != flow:
        return None
    if h.CANCEL in found:
        return Claim(pack(parent), seq, Kind.CANCEL)
    if h.REDRIVE in found:
        return Claim(pack(parent), seq, Kind.REDRIVE)
    if h.TIMER in found:
        n = _number(found.get(h.COMMAND), _MAX_SEQ)
        return Claim(pack(parent), seq, Kind.TIMER) if n < 0 else Fired(pack(parent), seq, n)
    return (_began if h.RUN in found else _expected)(parent, seq, value)


def _arrived(parent: str, raw: bytes | None, value: bytes) -> Arrived | None:
    parts = (raw or b"").split(b";")
    if len(parts) != _PARTS or parts[1] not in _ENDS:
        return None
    number, seq = _number(parts[0], MAX_CHILDREN - 1), _number(parts[2], _MAX_SEQ)
    if number < 0 or seq < 1:
        return None
    child = child_id(parent, number)
    content = sha256(value).digest()[:CONTENT_BYTES]
    return Arrived(pack(child), pack(parent), number, seq, _ENDS[parts[1]], content)


def _expected(parent: str, seq: int, value: bytes) -> Expected | None:
    try:
        what: Any = orjson.loads(value)
        stage, by, rule = what["stage"], what["forkedBy"], what["rule"]
        first, expected, due = what["first"], what["expected"], what.get("deadlineMs")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
    if type(stage) is not str or type(by) is not str or rule not in _RULES:
        return None
    if not (_within(first, MAX_CHILDREN - 1) and _within(expected, _MAX_BRANCHES)):
        return None
    if not (due is None or _within(due, 2**63 - 1)):
        return None
    if any(type(what.get(name)) not in (str, type(None)) for name in ("keysOf", "shielded")):
        return None
    return Expected(pack(parent), seq, stage, first, expected, rule, due)


def _began(parent: str, seq: int, value: bytes) -> Began | None:
    try:
        what: Any = orjson.loads(value)
        stage, first, _ = what["stage"], what["firstChild"], what["input"]
        texts = [what.get(name) for name in ("signal", "keysOf", "shielded")]
        timeout = what.get("timeoutMs")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
    if type(stage) is not str or not _within(first, MAX_CHILDREN):
        return None
    if any(t is not None and (type(t) is not str or "\0" in t) for t in [*texts, stage]):
        return None
    if not (timeout is None or _within(timeout, _MAX_WAIT_MS)):
        return None
    return Began(pack(parent), seq, stage)


def _sent(parent: str, raw: bytes | None, value: bytes) -> Sent | None:
    try:
        what: Any = orjson.loads(value)
        datetime.fromisoformat(what["at"])
        return Sent(pack(parent), (raw or b"").decode(), str(what["name"]))
    except (ValueError, AttributeError, KeyError, TypeError):
        return None


def _within(found: object, most: int) -> bool:
    return type(found) is int and 0 <= found <= most


def _number(raw: bytes | None, most: int) -> int:
    """A number up to `most`; -1 for anything else."""
    if raw is None or not raw.isdigit() or len(raw) > _DIGITS:
        return -1
    number = int(raw)
    return number if number <= most else -1
