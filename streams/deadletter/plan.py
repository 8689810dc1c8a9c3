"""From a letter to the record that brings its job back. Pure.

The record goes to the stage's own topic: key = the job's id, `handoff_redrive` first, so that the
worker claims the step, `handoff_seq` = the step that failed, so that it does the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas import headers as h
from schemas.state import JOIN
from streams.deadletter.letters import Header, Letter, Place, System
from streams.names import Names

_BORN_DIGITS: Final = 16
#: Why a letter of the join agent takes no other payload.
JOIN_AS_IT_IS: Final = (
    "The join agent joins what the branches have brought, whatever this record says. Edit the dead "
    "letters of the branches that failed, then redrive this one as it is."
)


class Redriven(NamedTuple):
    """A record to produce."""

    topic: str
    key: bytes
    value: bytes
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class Refused:
    """A letter that cannot be redriven, and why, as a sentence."""

    place: Place
    job: str
    reason: str


def plan_redrive(letter: Letter, names: Names, value: bytes | None = None) -> Redriven | Refused:
    """The record that redrives `letter`, with `value` instead of its own payload if given."""
    reason = _obstacle(letter, names) or _join_obstacle(letter, value)
    payload = letter.value if value is None else value
    if reason is None and payload is None:
        reason = "It has no payload, so it is a tombstone and no job."
    if reason is not None or payload is None:
        return Refused(letter.place, letter.job, reason or "")
    headers: list[Header] = [
        (h.REDRIVE, str(letter.place).encode()),
        (h.SEQ, b"%d" % letter.seq),
        (h.FLOW, letter.flow.encode()),
        (h.BORN, _born(letter)),
    ]
    kept = h.OF_THE_JOB
    if letter.key is not None and letter.key != letter.job.encode():
        headers.append((h.RAW_KEY, letter.key))
        kept = h.OF_THE_JOB - {h.RAW_KEY}
    rest = [x for x in letter.headers if x[0] in kept or not x[0].startswith(h.OURS)]
    headers += h.traced(rest, letter.job, letter.seq)
    topic = names.stage_topic(letter.flow, letter.stage)
    return Redriven(topic, letter.job.encode(), payload, headers)


def _obstacle(letter: Letter, names: Names) -> str | None:
    if letter.system is not System.HANDOFF:
        who = "nobody known" if letter.system is System.UNKNOWN else letter.system.value
        return (
            f"It was written by {who}, not by a stage, so it belongs to no job. Submit its payload "
            "as a new job, or redrive it with the tools of that system."
        )
    if not letter.flow:
        return (
            f"{letter.place.topic} is no dead-letter topic of this installation (check "
            "HANDOFF_PREFIX), so its stage is not known."
        )
    stage_topic = names.stage_topic(letter.flow, letter.stage)
    if letter.origin.topic != stage_topic:
        return (
            f"It says that its record came from {letter.origin.topic}, not from {stage_topic}: it "
            "was copied here from another installation."
        )
    if not letter.seq:
        return f"Its header {h.DLQ_SEQ} names no step, so the next one is not known."
    return None


def _join_obstacle(letter: Letter, value: bytes | None) -> str | None:
    """What keeps a letter of the join agent from being redriven, with `value` if given."""
    if letter.stage != JOIN:
        return None
    if letter.key != letter.job.encode():
        return (
            "It is a record that the join agent could not read, and of no job, so there is nothing "
            "to bring back. Look at it with handoff dlq show, then discard it."
        )
    return None if value is None else JOIN_AS_IT_IS


def _born(letter: Letter) -> bytes:
    """When the job was accepted, epoch microseconds: as its record said, or when that came."""
    said = h.spelled_out(letter.headers).get(h.BORN)
    if said and said.isdigit() and len(said) <= _BORN_DIGITS:
        return said
    came_ms = letter.origin.timestamp_ms
    return b"%d" % ((letter.at_ms if came_ms is None or came_ms < 0 else came_ms) * 1000)
