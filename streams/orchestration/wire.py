"""What lies in `<flow>.join` of runs, beside ends of calls, which are arrivals: beginnings, timers,
signals. Pure (`streams.joins.wire` reads them)."""

from __future__ import annotations

from typing import NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from schemas import headers as h
from schemas.ids import MAX_CHILDREN, traceparent
from streams.timers.record import AnyHeaders, returned_headers


class Beginning(BaseModel):
    """The value of the record that begins a run of `stage`, or with `signal` a wait of it."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )

    stage: str
    first_child: int = Field(ge=0, le=MAX_CHILDREN)
    keys_of: str | None = None
    signal: str | None = None
    timeout_ms: int | None = Field(default=None, ge=0)


class Began(NamedTuple):
    """The job's step `seq` began a run; `input` is JSON."""

    seq: int
    born_us: int
    what: Beginning
    input: bytes


class Fired(NamedTuple):
    """The timer of the command `n` of the run that step `seq` began."""

    seq: int
    n: int


class Sent(NamedTuple):
    """A signal `name` to the job; `value` is `streams.outcome.Signal` as JSON."""

    id: str
    name: str
    value: bytes


def encode_beginning(what: Beginning, payload: bytes) -> bytes:
    found = what.model_dump(by_alias=True, exclude_none=True)
    return orjson.dumps({**found, "input": orjson.Fragment(payload)})


def decode_beginning(value: bytes) -> tuple[Beginning, bytes]:
    """Raises pydantic's `ValidationError`, `ValueError` or `KeyError` for what is none."""
    found = orjson.loads(value)
    return Beginning.model_validate(found), orjson.dumps(found["input"])


def timer_headers(flow: bytes, key: bytes, run: int, n: int, born_us: int) -> AnyHeaders:
    """Headers of the record that comes back when the command `n` of a run is due."""
    ours = returned_headers(
        (),
        kind=b"run",
        flow=flow,
        seq=run,
        born_us=born_us,
        attempts=0,
        raw_key=None,
        job=key,
    )
    return [*ours, (h.COMMAND, b"%d" % n)]


def signal_headers(flow: str, job_id: str, sent_id: str, ce_time: str) -> list[tuple[str, bytes]]:
    """Headers of a signal to a job."""
    return [
        (h.SENT, sent_id.encode()),
        (h.FLOW, flow.encode()),
        (h.TRACEPARENT, traceparent(job_id, 1).encode()),
        (h.CE_ID, sent_id.encode()),
        (h.CE_TYPE, b"handoff.signal"),
        (h.CE_SPECVERSION, b"1.0"),
        (h.CE_SOURCE, b"handoff/signal"),
        (h.CE_TIME, ce_time.encode()),
    ]
