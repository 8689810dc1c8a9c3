"""Identities: jobs, steps and spans.

A job's id (``traceId``) is 32 lower-case hex digits, the W3C trace id and the Kafka key. A forked
child's id is its parent's plus ``/n``; its first 32 digits stay the trace id.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from uuid import UUID

_HEX_DIGITS = 32
#: Children that one job may have, over all its forks: five digits.
MAX_CHILDREN = 100_000
#: Forks within forks.
MAX_DEPTH = 8
_HEX = b"0123456789abcdef"
_ZERO = b"0" * _HEX_DIGITS
#: Steps that fit into four hex digits, one up.
_NEAR_STEPS = 0xFFFF
_USUAL_STEPS = 256
_CONTEXT_ENDS = [b"%04x-01" % (seq + 1) for seq in range(_USUAL_STEPS)]
# W3C Trace Context forbids the all-zero trace id.
_JOB_ID = re.compile(r"(?!0{32})[0-9a-f]{32}(?:/[0-9]{1,5}){0,8}")


def is_job_id(text: str) -> bool:
    """True for an id that is usable as a key."""
    return _JOB_ID.fullmatch(text) is not None


def is_root_id(key: bytes) -> bool:
    """True for the id of a job that is no child: `is_job_id`, quicker, for the bytes of a key."""
    return len(key) == _HEX_DIGITS and not key.translate(None, _HEX) and key != _ZERO


def trace_id_of(job_id: str) -> str:
    """The OpenTelemetry trace of a job: 32 hex digits, shared with its forked children."""
    return job_id[:_HEX_DIGITS]


def id_from_coordinates(topic_id: UUID, partition: int, offset: int) -> str:
    """The id of a job whose record brought none: the same record always gives the same id."""
    place = b"%b:%d:%d" % (topic_id.bytes, partition, offset)
    return blake2b(place, digest_size=16, person=b"handoff-job").hexdigest()


def id_from_line(flow: str, line: bytes, occurrence: int) -> str:
    """The id of the n-th equal line of a submitted file, so that a file sent again is known."""
    content = b"%b\0%d\0%b" % (flow.encode(), occurrence, line)
    return blake2b(content, digest_size=16, person=b"handoff-line").hexdigest()


def id_from_field(flow: str, value: str) -> str:
    """The id of a job that its sender names by a field of the payload."""
    return id_from_line(flow, value.encode(), -1)


def id_of_rerun(job_id: str, stage: str, label: str) -> str:
    """The id of the rerun called `label` of a job from `stage` on: asked for twice, it is one."""
    content = b"%b\0%b\0%b" % (job_id.encode(), stage.encode(), label.encode())
    return blake2b(content, digest_size=16, person=b"handoff-rerun").hexdigest()


def child_id(parent: str, n: int) -> str:
    """The id of a job's forked child number `n`, counted over all its forks from 0."""
    return f"{parent}/{n}"


def parent_of(job_id: str) -> str | None:
    """The job that forked this one; None for a job that was submitted."""
    parent, slash, _ = job_id.rpartition("/")
    return parent if slash else None


def lineage(job_id: str) -> list[str]:
    """A job and those that it was forked from, the first one first."""
    parent = parent_of(job_id)
    return [*(lineage(parent) if parent is not None else ()), job_id]


def traceparent(job_id: str, seq: int) -> str:
    """The W3C context of one hop, sampled: `00-<trace>-<span>-01`."""
    return f"00-{trace_id_of(job_id)}-{span_id(job_id, seq)}-01"


def traceparent_of_key(key: bytes, seq: int) -> bytes:
    """`traceparent`, quicker, for the bytes of a job's key."""
    if seq < _USUAL_STEPS and len(key) == _HEX_DIGITS:
        return b"00-%b-%b%b" % (key, key[:12], _CONTEXT_ENDS[seq])
    return traceparent(key.decode(), seq).encode()


def span_id(job_id: str, seq: int) -> str:
    """The span of one hop, 16 hex digits: retries, restarts and re-exports cannot double it.

    Unique within its trace, and never zero: a job's first digits and its step, so that a person can
    read it; for forked children (which share the trace) and far steps a hash.
    """
    if len(job_id) == _HEX_DIGITS and seq < _NEAR_STEPS:
        return f"{job_id[:12]}{seq + 1:04x}"
    return blake2b(b"%b:%d" % (job_id.encode(), seq), digest_size=8).hexdigest()
