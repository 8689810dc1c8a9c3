"""From records to cases: what Postgres knows of them, a batch at a time, in a read-only session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson

from schemas import headers as h
from schemas.state import JOIN, JobError, Status
from streams.config import Settings
from streams.flow import Flow
from streams.ledger.prune import horizon
from streams.limits.limit import LIMITED
from streams.postgres import SyncConn, connect, load_queries
from streams.replay.facts import Case, KeptEffect, Spot, Step, StoredRecord
from streams.replay.running import tracker_of
from streams.runtime.delivery import Delivery
from streams.runtime.stage_journal import KILLS_WORKER

_SQL: Final = load_queries("streams.replay")
_AGENT: Final = "it is for the join agent, which runs no handler"


@dataclass(frozen=True, slots=True)
class Consumed:
    """Where the record of a step lies, or lay; None where the step does not tell."""

    job: str
    seq: int
    flow: str
    stage: str
    topic: str
    spot: Spot | None

    @property
    def place(self) -> str:
        if self.spot is None:
            return "a place that is not known"
        return f"{self.topic}[{self.spot.partition}]@{self.spot.offset}"


@contextmanager
def lookup(settings: Settings, flow: Flow) -> Iterator[Lookup]:
    """A connection on which the server refuses every write. Raises `BadWorld`."""
    with connect(settings) as conn:
        conn.execute(_SQL["read_only"])
        yield Lookup(conn, settings, flow)


class Lookup:
    """Questions to Postgres; each is one round trip for a batch."""

    def __init__(self, conn: SyncConn, settings: Settings, flow: Flow) -> None:
        self.conn, self._flow = conn, flow
        self._stages = {stage.name for stage in flow.stages}
        self._pruned_before_us = horizon(settings, datetime.now(UTC)).timestamp() * 1e6

    def cases(self, records: Sequence[tuple[str, StoredRecord]]) -> list[Case]:
        """A case for each (stage, record)."""
        steps = self.steps_at([record.spot for _, record in records])
        effects = self.effects_of(
            {_keys_of(r, steps[r.spot]) for _, r in records if r.spot in steps}
        )
        known = self._known([x for x in records if x[1].spot not in steps])
        return [self._case(stage, r, steps.get(r.spot), effects, known) for stage, r in records]

    def gone(self, consumed: Consumed, why: str) -> Case:
        """A step whose record is not to be had."""
        (step,) = self.steps_at([consumed.spot]).values() if consumed.spot else (None,)
        skip = consumed.stage == JOIN
        why = _AGENT if skip else why
        return Case(
            consumed.flow, consumed.stage, consumed.place, None, step, because=why, skip=skip
        )

    def _case(
        self,
        stage: str,
        record: StoredRecord,
        step: Step | None,
        effects: Mapping[tuple[str, str], tuple[KeptEffect, ...]],
        known: set[Spot],
    ) -> Case:
        flow, skip, because = self._flow.name, False, ""
        if record.value_ is None:
            step, skip, because = None, True, "tombstone"
        elif record.spot in known:
            skip, because = True, "duplicate: another record did its step"
        elif stage == JOIN:
            skip, because = True, _AGENT
        elif step is None:
            because = "no step is known of it: not consumed or projected yet, or removed"
        elif step.status is Status.CANCELLED:
            skip, because = True, "its job was cancelled, so no handler's word on it was kept"
        elif step.error is not None and step.error.kind == LIMITED:
            skip, because = True, "it waited for a limit: no handler ran"
        elif stage not in self._stages or step.flow != flow:
            because = f"flow {flow} has no stage {stage}"
        elif step.error is not None and step.error.kind == KILLS_WORKER:
            because = "it killed its workers, so it is not run"
        return Case(
            flow=flow,
            stage=stage,
            place=record.place,
            record=record,
            step=step,
            effects=effects.get((_keys_of(record, step), step.stage), ()) if step else (),
            because=because,
            skip=skip,
            pruned=step is not None and step.committed_us < self._pruned_before_us,
        )

    def steps_at(self, spots: Sequence[Spot]) -> dict[Spot, Step]:
        """The step of each place that led to one; of several the first that was committed."""
        if not spots:
            return {}
        rows = self.conn.execute(_SQL["steps_at"], {"places": _json(spots)})
        return {_spot(row): _step(row) for row in rows}

    def effects_of(
        self, jobs: set[str] | Sequence[str]
    ) -> dict[tuple[str, str], tuple[KeptEffect, ...]]:
        """The ledger's rows by job and stage."""
        found: dict[tuple[str, str], tuple[KeptEffect, ...]] = {}
        if not jobs:
            return found
        for row in self.conn.execute(_SQL["effects_of"], {"jobs": _json(sorted(jobs))}):
            effect = KeptEffect(
                key=row["key"],
                job=row["trace_id"],
                stage=row["stage"],
                name=row["name"],
                status=row["status"],
                fingerprint=row["fingerprint"],
                result=row["result"],
            )
            found[effect.job, effect.stage] = (*found.get((effect.job, effect.stage), ()), effect)
        return found

    def consumed_by(self, jobs: Sequence[str]) -> list[Consumed]:
        """The records that the steps of `jobs` consumed."""
        rows = self.conn.execute(_SQL["consumed_by"], {"jobs": _json(jobs)})
        return [consumed_of(row) for row in rows]

    def descendants(self, job: str) -> list[str]:
        """Its children, and theirs, all the way down."""
        return [row["trace_id"] for row in self.conn.execute(_SQL["descendants"], {"job": job})]

    def _known(self, records: Sequence[tuple[str, StoredRecord]]) -> set[Spot]:
        """Those whose step is done, though not by them."""
        named = {
            r.spot: (*_name(r, self._flow.name), stage)
            for stage, r in records
            if r.value_ is not None
        }
        if not named:
            return set()
        steps = [{"trace_id": job, "seq": seq, "stage": s} for job, seq, s in named.values()]
        rows = self.conn.execute(_SQL["known_steps"], {"steps": _json(steps)})
        done = {(row["trace_id"], row["seq"]) for row in rows}
        return {spot for spot, (job, seq, _) in named.items() if (job, seq) in done}


def consumed_of(row: Mapping[str, Any]) -> Consumed:
    """The record that a step consumed, by its row of `job_history`."""
    return Consumed(
        job=row["trace_id"],
        seq=row["seq"],
        flow=row["flow"],
        stage=row["stage"],
        topic=row["consumed_topic"] or "",
        spot=None if row["consumed_topic_id"] is None else _spot(row),
    )


def _name(record: StoredRecord, flow: str) -> tuple[str, int]:
    """Job and step of a record, as a worker reads them."""
    d = Delivery(record, tracker_of(record), 0, 0)
    d.identify(flow.encode())
    return d.job_id, d.seq


def _keys_of(record: StoredRecord, step: Step) -> str:
    """The job under whose keys the effects of a step were done: a rerun may do them under those of
    its original."""
    told = dict(record.headers_).get(h.KEYS_OF)
    return step.job if told is None else told.decode(errors="replace")


def _json(value: Any) -> str:
    spots = [x._asdict() if isinstance(x, Spot) else x for x in value]
    return orjson.dumps(spots).decode()


def _spot(row: Mapping[str, Any]) -> Spot:
    topic_id: UUID = row["consumed_topic_id"]
    return Spot(topic_id, row["consumed_partition"], row["consumed_offset"])


def _step(row: Mapping[str, Any]) -> Step:
    return Step(
        job=row["trace_id"],
        seq=row["seq"],
        flow=row["flow"],
        stage=row["stage"],
        status=Status(row["status"]),
        to=tuple(row["handed_to"]),
        data=row["data"],
        error=None if row["error"] is None else JobError.model_validate(row["error"]),
        committed_us=row["committed_us"],
        is_last=row["is_last"],
    )
