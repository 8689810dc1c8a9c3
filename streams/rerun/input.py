"""The very input that a stage got in a job: the bytes of its record, or of the step before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas import headers as h
from streams.config import Settings
from streams.errors import HandoffError
from streams.kafka import admin_client
from streams.postgres import SyncConn, load_queries
from streams.replay.lookup import Consumed, consumed_of
from streams.replay.sources import fetch

_SQL: Final = load_queries("streams.rerun")
#: Of a number of children.
_DIGITS: Final = 6


class Refused(HandoffError):
    """A job cannot be rerun from this stage, at least not now; nothing was sent.

    Operator action: what the message says.
    """


@dataclass(frozen=True, slots=True)
class Input:
    """A payload, JSON; `source` tells where it was found, `seq` which step of the job took it, and
    `children` how many the job had forked by then."""

    value: bytes
    source: str
    seq: int
    children: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of a job: the record that it consumed, what it made of it and for whom."""

    consumed: Consumed
    handed_to: tuple[str, ...]
    #: JSON, as it was written.
    data: str | None


def find_input(settings: Settings, conn: SyncConn, job: str, stage: str) -> Input:
    """What `stage` got in `job`, the last time.

    Raises `Refused` when the job was never there, or the input is not to be had any more, and
    `BadWorld` when Kafka or Postgres cannot be read.
    """
    steps = _steps(conn, job)
    at_stage = [x for x in steps if x.consumed.stage == stage]
    if not at_stage:
        seen = ", ".join(dict.fromkeys(x.consumed.stage for x in steps)) or "no stage"
        raise Refused(f"Job {job} was never at stage {stage}; it came through {seen}.")
    with admin_client(settings) as admin:
        for step in reversed(at_stage):
            last = step.consumed
            records, reasons = fetch(settings, admin, [last])
            record = records.get(last.spot)
            if record is None or h.CANCEL not in dict(record.headers_):
                break
            # It only made the stage look: what it was to take came before.
    if record is not None and record.value_ is not None:
        told = dict(record.headers_).get(h.CHILDREN) or b""
        children = int(told) if told.isdigit() and len(told) <= _DIGITS else 0
        return Input(record.value_, last.place, last.seq, children)
    kept = step_before(steps, last)
    if kept is None:
        why = reasons.get(last.place, "its record has no payload")
        raise Refused(
            f"What stage {stage} got in job {job} is not to be had any more: {why} ({last.place}), "
            f"and the step before it is not in job_history, or did not hand it over as it was. "
            f"Submit the payload as a new job: handoff submit FILE --stage {stage}."
        )
    row = conn.execute(_SQL["children_before"], {"job": job, "seq": last.seq}).fetchone()
    return kept if row is None else replace(kept, children=row["children"])


def step_before(steps: Sequence[Taken], last: Consumed) -> Input | None:
    """The output of the step that handed the job to `last`, if that is what `last` got.

    Between the two there must be no other step: a letter may have been edited.
    """
    for step in steps:
        before = step.consumed
        if before.seq == last.seq - 1 and last.stage in step.handed_to and step.data is not None:
            return Input(step.data.encode(), f"step {before.seq} in job_history", last.seq)
    return None


def _steps(conn: SyncConn, job: str) -> list[Taken]:
    return [
        Taken(consumed_of(row), tuple(row["handed_to"]), row["data"])
        for row in conn.execute(_SQL["rerun_steps"], {"job": job})
    ]
