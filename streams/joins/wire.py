"""What lies in `<flow>.join`, keyed by the parent's id: expectations, arrivals, deadlines, what a
redrive brings back, and what runs are told (`streams.orchestration.wire`). Pure.

An expectation is a hand-off from the forking step to the join agent (`schemas.headers.HOP` first);
an arrival begins with ARRIVAL; a deadline comes from `timers`, with TIMER.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from schemas import headers as h
from schemas.ids import MAX_CHILDREN, is_job_id
from schemas.state import Status
from streams.errors import BadRecord
from streams.orchestration.wire import Began, Fired, Sent, decode_beginning
from streams.outcome import MAX_BRANCHES, OnMissing
from streams.signals import Signal
from streams.timers.record import AnyHeaders, returned_headers

_MAX_SEQ: Final = 2**31 - 2
_ENDS: Final = {status.value.encode(): status for status in Status if status.terminal}
_MAX_DIGITS: Final = 16


class Expectation(BaseModel):
    """What a fork expects: branches `first` to `first` + `expected` - 1, for the stage `stage`."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )

    stage: str
    forked_by: str
    first: int = Field(ge=0, lt=MAX_CHILDREN)
    expected: int = Field(ge=0, le=MAX_BRANCHES)
    rule: OnMissing
    deadline_ms: int | None = Field(default=None, ge=0)
    #: See `schemas.headers.KEYS_OF`; of the parent.
    keys_of: str | None = None


class Expected(NamedTuple):
    """An expectation, the parent's step `seq` that forked, and when its job was accepted."""

    seq: int
    born_us: int
    what: Expectation


class Arrival(NamedTuple):
    """Branch `number` is over after its step `seq`; `value` is its result or error, JSON."""

    number: int
    status: Status
    seq: int
    value: bytes


class Deadline(NamedTuple):
    """The time of the fork at the parent's step `seq` is up."""

    seq: int


class Reopen(NamedTuple):
    """An operator brought back a parent whose join failed with its step `seq`."""

    seq: int


class Cancelled(NamedTuple):
    """Somebody cancelled the parent."""

    by: str
    reason: str


JoinRecord = Expected | Arrival | Deadline | Reopen | Cancelled | Began | Fired | Sent


def encode_expectation(what: Expectation) -> bytes:
    return what.__pydantic_serializer__.to_json(what, by_alias=True, exclude_none=True)


def deadline_headers(flow: bytes, key: bytes, seq: int, born_us: int) -> AnyHeaders:
    """Headers of the record that comes back when a fork's time is up."""
    return returned_headers(
        (),
        kind=b"deadline",
        flow=flow,
        seq=seq,
        born_us=born_us,
        attempts=0,
        raw_key=None,
        job=key,
    )


def read(
    key: bytes | None, headers: Sequence[tuple[str, bytes | None]], value: bytes, flow: bytes
) -> JoinRecord | str:
    """The record that lies there, or why it is none. Its `key` is the parent's id."""
    try:
        parent = (key or b"").decode()
    except UnicodeDecodeError:
        parent = ""
    if not is_job_id(parent):
        return "its key is no job id"
    if headers and headers[0][0] == h.ARRIVAL:
        return _arrival(headers[0][1] or b"", value)
    if headers and headers[0][0] == h.SENT:
        return _signal(headers[0][1] or b"", value)
    return _of_the_parent(h.spelled_out(headers), value, flow)


def _of_the_parent(found: dict[str, bytes | None], value: bytes, flow: bytes) -> JoinRecord | str:
    seq = _number(found.get(h.SEQ), _MAX_SEQ)
    if not seq:
        return f"it has neither a header {h.ARRIVAL} nor a number in {h.SEQ}"
    if found.get(h.FLOW) != flow:
        return f"its header {h.FLOW} names another flow"
    if h.REDRIVE in found:
        return Reopen(seq)
    if h.TIMER in found:
        command = _number(found.get(h.COMMAND), _MAX_SEQ)
        return Deadline(seq) if command is None else Fired(seq, command)
    born_us = _number(found.get(h.BORN), 2**53) or 0
    read = _beginning if h.RUN in found else _expectation
    return read(seq, born_us, value)


def _expectation(seq: int, born_us: int, value: bytes) -> Expected | str:
    try:
        what = Expectation.model_validate_json(value)
    except ValidationError as e:
        fault = e.errors(include_input=False, include_url=False)[0]
        return f"it is no expectation: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    return Expected(seq, born_us, what)


def _beginning(seq: int, born_us: int, value: bytes) -> Began | str:
    try:
        return Began(seq, born_us, *decode_beginning(value))
    except (ValidationError, ValueError, KeyError, TypeError) as e:
        return f"it begins no run: {type(e).__name__}"


def _signal(sent_id: bytes, value: bytes) -> Sent | str:
    try:
        return Sent(sent_id.decode(), Signal.from_json(value).name, value)
    except (BadRecord, UnicodeDecodeError) as e:
        return f"it is no signal: {e}"


def _arrival(raw: bytes, value: bytes) -> Arrival | str:
    try:
        n, status, seq = raw.split(b";")
    except ValueError:
        return f"its header {h.ARRIVAL} has not three parts"
    number, step, end = _number(n, MAX_CHILDREN - 1), _number(seq, _MAX_SEQ), _ENDS.get(status)
    if number is None or not step or end is None:
        return f"its header {h.ARRIVAL} is no branch's end"
    return Arrival(number, end, step, value)


def _number(raw: bytes | None, most: int) -> int | None:
    if raw is None or not raw.isdigit() or len(raw) > _MAX_DIGITS:
        return None
    number = int(raw)
    return number if number <= most else None
