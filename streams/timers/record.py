"""The timer record: a record that is to come back to `return_topic` at `due_ms`. Pure.

On the wire: key = the job's id, value = the payload, headers = `handoff_due`, `handoff_return`,
then the headers that the returned record will have, `handoff_timer` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from schemas import headers as h
from schemas.ids import is_job_id
from streams.positions import LogRecord

#: Last millisecond of the year 9999.
MAX_DUE_MS: Final = 253_402_300_799_999
_DIGITS: Final = len(str(MAX_DUE_MS))
_TOPIC: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")

#: As the driver gives and takes them: a value may be null.
AnyHeaders = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Timer:
    """A record that is to be written to `return_topic` once Postgres' clock has passed `due_ms`."""

    due_ms: int
    return_topic: str
    #: The job's id: the key of the timer record and of the returned one.
    trace_id: str
    value: bytes | None
    #: Of the returned record, `handoff_timer` first.
    headers: AnyHeaders


@dataclass(frozen=True, slots=True)
class TimerRecord(LogRecord):
    """One record of the `timers` topic as it lies there; no `headers`: they are unreadable."""

    headers: AnyHeaders | None


def returned_headers(
    before: Iterable[tuple[str, bytes | None]],
    *,
    kind: bytes,
    flow: bytes,
    seq: int,
    born_us: int,
    attempts: int,
    raw_key: bytes | None,
    job: bytes,
) -> list[tuple[str, bytes | None]]:
    """Headers of the record that comes back to do step `seq` + 1, having spent `attempts` runs.

    Those that it had `before` follow ours, so that a dead letter is complete, its raw key included;
    its `traceparent` gives way to that of step `seq`, a foreign one is kept as `handoff_link`.
    """
    ours: list[tuple[str, bytes | None]] = [
        (h.TIMER, kind),
        (h.SEQ, b"%d" % seq),
        (h.FLOW, flow),
        (h.BORN, b"%d" % born_us),
        (h.ATTEMPT, b"%d" % attempts),
    ]
    if raw_key is not None and raw_key != job:
        ours.append((h.RAW_KEY, raw_key))
    kept = [x for x in before if not x[0].startswith(h.OURS) or x[0] in h.OF_THE_JOB]
    return ours + h.traced(kept, job.decode(), seq)


def encode(timer: Timer, topic: str) -> tuple[str, bytes, bytes | None, Any]:
    """The record to produce: topic, key, value, headers."""
    headers = [
        (h.DUE, b"%d" % min(timer.due_ms, MAX_DUE_MS)),
        (h.RETURN, timer.return_topic.encode()),
        *timer.headers,
    ]
    return topic, timer.trace_id.encode(), timer.value, headers


def decode(record: TimerRecord) -> Timer | str:
    """The timer that a record spells, or why it is none."""
    if record.headers is None:
        return "its headers are unreadable"
    found = dict(record.headers)
    due, to = found.get(h.DUE), found.get(h.RETURN)
    if due is None or not due.isdigit() or len(due) > _DIGITS or int(due) > MAX_DUE_MS:
        return f"its header {h.DUE} is no time in epoch milliseconds"
    if to is None or _TOPIC.fullmatch(to) is None:
        return f"its header {h.RETURN} is no topic"
    if to.decode() == record.topic:
        return f"its header {h.RETURN} is the timers topic itself"
    try:
        trace_id = (record.key or b"").decode()
    except UnicodeDecodeError:
        trace_id = ""
    if not is_job_id(trace_id):
        return "its key is no job id"
    headers = tuple(each for each in record.headers if each[0] not in (h.DUE, h.RETURN))
    return Timer(int(due), to.decode(), trace_id, record.value, headers)


def pack(headers: AnyHeaders) -> bytes:
    """`headers` as one JSON text, in order, each byte of a value as the character of its number."""
    return orjson.dumps([(n, None if v is None else v.decode("latin-1")) for n, v in headers])


def unpack(packed: bytes) -> list[tuple[str, bytes | None]]:
    """What `pack` packed."""
    return [(n, None if v is None else v.encode("latin-1")) for n, v in orjson.loads(packed)]
