"""What a record in a stage's topic, a sink or `timers` claims to be. Pure.

Written from the wire's description (`schemas.headers`), not shared with the worker: two readings of
the same bytes that differ are a fault, and a test holds them together.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from schemas import headers as h
from schemas.ids import id_from_coordinates, is_job_id, is_root_id
from streams.kafka import Record

# Written by timers (decision 7); a worker takes a record with TIMER for a suspect.
_TIMER: Final = "handoff_timer"
_ATTEMPT: Final = "handoff_attempt"
_DUE: Final = "handoff_due"
_RETURN: Final = "handoff_return"

_HEX_DIGITS: Final = 32
_ROOT_BYTES: Final = 16
_MAX_SEQ: Final = 2**31 - 2
_PLAIN_SEQ_DIGITS: Final = 9
_BORN_DIGITS: Final = 16
_DUE_DIGITS: Final = 15
_PARTS: Final = 3


class Kind(IntEnum):
    """What a record claims to be. SQL knows these numbers."""

    #: A new job, also one that is named by its place.
    SUBMISSION = 0
    HAND_OFF = 1
    #: A copy that an operator, or a timer, brought back: there may be several.
    REDRIVE = 2
    TIMER = 3
    #: A hand-off that cannot be one; its consumer dead-letters it as a job named by its place. Or a
    #: rerun whose original has no name; its consumer dead-letters it.
    UNUSABLE = 4
    #: A null value: no job, its consumer passes it over.
    TOMBSTONE = 5
    #: The first record of a forked child, or of a run's call.
    BRANCH = 6
    #: Makes the hop of a waiting job look, since the job was cancelled: there may be several.
    CANCEL = 7
    #: A signal to a job: it may cause any of its steps.
    SIGNAL = 8


#: What says that a record is none of a stage's own, the first that is there counts.
_COPIES: Final = (
    (h.CANCEL, Kind.CANCEL),
    (h.REDRIVE, Kind.REDRIVE),
    (_TIMER, Kind.TIMER),
)


class Claim(NamedTuple):
    """`seq` is the step that wrote the record, 0 for a new job: its consumer does `seq` + 1."""

    job: bytes
    seq: int
    kind: Kind


class Timer(NamedTuple):
    """A record on `timers`: step `seq` of `job` waits until `due_ms`; with `command`, that one of
    the run which that step began."""

    job: bytes
    seq: int
    due_ms: int
    return_topic: str
    command: int | None = None


def pack(job_id: str) -> bytes:
    """A job id in half its length; the order of ids is kept."""
    return bytes.fromhex(job_id[:_HEX_DIGITS]) + job_id[_HEX_DIGITS:].encode()


def unpack(job: bytes) -> str:
    return job[:_ROOT_BYTES].hex() + job[_ROOT_BYTES:].decode()


def identify(record: Record, flow: bytes, topic_id: UUID) -> Claim:
    """Which job and step a record belongs to, for the worker of a stage of `flow`."""
    headers = headers_of(record)
    claim = None
    if headers and headers[0][0] == h.HOP and headers[0][1]:
        claim = _plain(record.key(), headers[0][1], flow)
    if claim is None:
        claim = _closely(record, dict(h.spelled_out(headers)), flow, topic_id)
    return claim if record.value() is not None else claim._replace(kind=Kind.TOMBSTONE)


def headers_of(record: Record) -> list[tuple[str, bytes]]:
    try:
        return record.headers() or []
    except (UnicodeDecodeError, ValueError):
        # Names that are no UTF-8: for a worker there are none.
        return []


def _plain(key: bytes | None, hop: bytes, flow: bytes) -> Claim | None:
    """The usual case, a hand-off with the short header first; None for any other."""
    parts = hop.split(b";")
    if len(parts) != _PARTS or parts[2] != flow or key is None or not is_root_id(key):
        return None
    seq, born, _ = parts
    if not (seq.isdigit() and born.isdigit()):
        return None
    if len(seq) > _PLAIN_SEQ_DIGITS or len(born) > _BORN_DIGITS or int(seq) == 0:
        return None
    return Claim(bytes.fromhex(key.decode()), int(seq), Kind.HAND_OFF)


def _closely(record: Record, found: dict[str, bytes | None], flow: bytes, topic_id: UUID) -> Claim:
    job_id = _text(record.key())
    bad = h.KEYS_OF in found and not is_job_id(_text(found[h.KEYS_OF]))
    bad = bad or (h.SHIELDED in found and not is_job_id(_text(found[h.SHIELDED])))
    bad = bad or (h.CHILDREN in found and _count(found[h.CHILDREN]) < 0)
    if h.SEQ not in found:
        kind = Kind.UNUSABLE if bad else Kind.SUBMISSION
        if is_job_id(job_id) and "/" not in job_id:
            return Claim(pack(job_id), 0, kind)
        return Claim(_place(record, topic_id), 0, kind)
    seq, least = _number(found[h.SEQ]), 1
    bad = bad or found.get(h.FLOW) != flow or not is_job_id(job_id)
    bad = bad or (_TIMER in found and _count(found.get(_ATTEMPT)) < 0)
    if h.CANCEL in found:
        bad = bad or not f"{job_id}/".startswith(f"{_text(found[h.CANCEL]) or '-'}/")
    if h.FORK in found and "/" in job_id:
        # Step 0 of a child: none of its own has written it.
        least, bad = 0, bad or _count(found[h.FORK]) < 0
    if not least <= seq < _MAX_SEQ or bad:
        return Claim(_place(record, topic_id), 0, Kind.UNUSABLE)
    for header, kind in _COPIES:
        if header in found:
            return Claim(pack(job_id), seq, kind)
    return Claim(pack(job_id), seq, Kind.HAND_OFF if seq else Kind.BRANCH)


def forked_by(record: Record) -> int:
    """Of a record that `identify` calls a `BRANCH`: the step of its parent that forked it."""
    return _count(dict(headers_of(record)).get(h.FORK))


def read_timer(record: Record) -> Timer | None:
    """The timer that a record of `timers` spells; None if it is none."""
    found = dict(h.spelled_out(headers_of(record)))
    job_id, seq = _text(record.key()), _number(found.get(h.SEQ))
    due, to = found.get(_DUE) or b"", found.get(_RETURN)
    if not is_job_id(job_id) or seq < 1 or not due.isdigit() or len(due) > _DUE_DIGITS or not to:
        return None
    command = _count(found.get(h.COMMAND))
    back = to.decode(errors="replace")
    return Timer(pack(job_id), seq, int(due), back, None if command < 0 else command)


def _place(record: Record, topic_id: UUID) -> bytes:
    return pack(id_from_coordinates(topic_id, record.partition(), record.offset()))


def _text(key: bytes | None) -> str:
    try:
        return (key or b"").decode()
    except UnicodeDecodeError:
        return ""


def _count(raw: bytes | None) -> int:
    """A number of at most nine digits; -1 for anything else."""
    return int(raw) if raw and raw.isdigit() and len(raw) <= _PLAIN_SEQ_DIGITS else -1


def _number(raw: bytes | None) -> int:
    try:
        return int(raw or b"")
    except ValueError:
        return -1
