"""From an outcome to a result, from a result to records: state, hand-off, dead letter. Pure.

Everything that is equal for all records of a stage is made once, here, since this runs for each
record of the hot path.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, assert_never

import orjson
from pydantic import BaseModel

from schemas import headers as h
from schemas.ids import parent_of, traceparent_of_key
from schemas.state import JOIN, VERSION, JobError, Status, job_error
from streams.config import Settings
from streams.errors import BadRecord, BadSetup
from streams.flow import Flow, Stage
from streams.orchestration.journal import RunTurn, error_of
from streams.orchestration.wire import Beginning
from streams.outcome import MAX_WAIT, Begin, Done, Emit, Fork, Outcome, Reject, Retry, Wait
from streams.runtime.delivery import Delivery, OutRecord, Result, Target
from streams.runtime.forks import Child, ForkWriter, Split, split
from streams.runtime.run_records import RunWriter, advance, beginning
from streams.timers.record import MAX_DUE_MS, Timer, encode, returned_headers

#: Type of what a stage was handed before it waited.
_RESUMED = b"handoff.resumed"
_TO_JOIN = orjson.dumps([JOIN])
_STATUS = {status: status.value.encode() for status in Status}
_STATE = (
    b'{"traceId":"%b","status":"%b","seq":%d,"data":%b,"attempts":%d,"updatedAt":"%b","to":%b,'
    b'"timing":{"bornUs":%d,"producedUs":%d,"polledUs":%d,"startedUs":%d,"finishedUs":%d},'
    b'"consumed":{%b,"offset":%d},%b%b'
)


#: A named tuple's own constructor takes three times as long.
_result = partial(tuple.__new__, Result)


def now_us() -> int:
    """Epoch microseconds."""
    return time.time_ns() // 1000


class RecordWriter:
    """Writes the records of one stage in one worker."""

    def __init__(self, flow: Flow, stage: Stage[Any, Any], settings: Settings, worker: str) -> None:
        names = settings.names
        self._flow, self._stage = flow, stage
        self._max_payload_bytes = settings.max_payload_bytes
        self._state_topic = names.job_state_topic
        self._timers_topic = names.timers_topic
        self._dead_letter_topic = names.dead_letter_topic(flow.name, stage.name)
        self._group = names.stage_group(flow.name, stage.name).encode()
        self._targets = {
            to: Target(
                names.stage_topic(flow.name, to),
                Status.DONE if to in flow.sinks else Status.RUNNING,
                orjson.dumps([to]),
            )
            for to in stage.emits
        }
        self._only_target = next(iter(self._targets.values())) if len(stage.emits) == 1 else None
        #: The state's fields that are equal for all records of this worker.
        self._state_end = orjson.dumps(
            {"flow": flow.name, "stage": stage.name, "worker": worker, "v": VERSION}
        )[1:]
        self._static_headers: h.Headers = [
            (h.CE_SPECVERSION, b"1.0"),
            (h.CE_SOURCE, f"handoff/{flow.name}/{stage.name}".encode()),
        ]
        self._flow_name = flow.name.encode()
        self._forks = ForkWriter(
            flow.name,
            stage.name,
            names.join_topic(flow.name),
            self._timers_topic,
            self._static_headers,
        )
        self._runs = RunWriter(flow.name, names, self._forks, self._static_headers)
        self._types: dict[type[BaseModel], bytes] = {}
        self._now_ms = self._now_s = 0
        self._text_ms = self._text_s = b""

    def conclude(self, d: Delivery, outcome: Outcome | BaseModel, finished_us: int) -> None:
        """Make `outcome` the result of `d`.

        Raises `BadRecord` for an outcome that can never be written (too large), `BadSetup` for one
        that the stage did not declare.
        """
        model: Any = outcome
        # A model's metaclass makes `isinstance` dear, so types that were seen are known.
        if type(model) not in self._types and not isinstance(model, BaseModel):
            self._conclude(d, model, finished_us)
        elif self._only_target is not None:
            self._hand_off(d, self._only_target, model, finished_us)
        else:
            raise BadSetup(
                f"Stage {self._stage.name} returned a plain {type(model).__name__}, but does not "
                "declare exactly one `emits`; return Emit(to, model) or Done(model)."
            )

    def _conclude(self, d: Delivery, outcome: Outcome, finished_us: int) -> None:
        match outcome:
            case Emit(to=to, model=model):
                self._hand_off(d, self._target(d, to), model, finished_us)
            case Done(result=result):
                data = None if result is None else self._payload(result)
                d.result = Result(Status.DONE, data, finished_us)
            case Fork():
                self._fork(d, outcome, finished_us)
            case Reject(reason=reason):
                self.fail(d, job_error("rejected", reason), finished_us)
            case Wait():
                self._wait(d, outcome, finished_us)
            case Begin(model=model):
                self._begin(d, self._beginning(d), self._payload(model), finished_us)
            case Retry():
                raise AssertionError("the stage loop handles Retry before it comes here")
            case _:
                assert_never(outcome)

    def _target(self, d: Delivery, to: str) -> Target:
        target = self._targets.get(to)
        if target is None:
            declared = ", ".join(self._stage.emits) or "nothing"
            raise BadSetup(
                f"Stage {self._stage.name} handed job {d.job_id} to {to}, but declares {declared}."
            )
        return target

    def _hand_off(self, d: Delivery, target: Target, model: BaseModel, finished_us: int) -> None:
        data = self._payload(model)
        ce_type = self._types.get(type(model)) or self._type_of(type(model))
        result = target.status, data, finished_us, target, ce_type, None, None, None, None, None
        d.result = _result(result)

    def _fork(self, d: Delivery, fork: Fork, finished_us: int) -> None:
        made = split(self._stage, d, fork, partial(self._child, d), finished_us)
        d.weight, d.held_bytes = 2 + made.expected, made.size
        d.result = Result(Status.WAITING, None, finished_us, split=made)

    def _wait(self, d: Delivery, wait: Wait, finished_us: int) -> None:
        if wait.signal not in self._stage.waits:
            declared = ", ".join(self._stage.waits) or "nothing"
            raise BadSetup(
                f"Stage {self._stage.name} waits for signal {wait.signal} with job {d.job_id}, but "
                f"its `waits` declares {declared}."
            )
        timeout_ms = None
        if wait.timeout is not None:
            timeout_ms = max(0, round(min(wait.timeout, MAX_WAIT).total_seconds() * 1000))
        what = self._beginning(d, signal=wait.signal, timeout_ms=timeout_ms)
        # The handler took the payload, so it is JSON.
        self._begin(d, what, d.message.value() or b"null", finished_us)

    def _beginning(self, d: Delivery, **wait: Any) -> Beginning:
        return Beginning(
            stage=self._stage.name,
            first_child=d.children,
            keys_of=d.keys_of,
            shielded=d.shielded,
            **wait,
        )

    @staticmethod
    def _begin(d: Delivery, what: Beginning, payload: bytes, finished_us: int) -> None:
        made = beginning(d, what, payload)
        d.weight, d.held_bytes = 2, made.size
        d.result = Result(Status.WAITING, None, finished_us, advance=made)

    def advance(self, d: Delivery, turn: RunTurn, finished_us: int) -> None:
        """Make what a run does with the record `d` its result."""
        made, end = advance(turn), turn.end
        d.weight, d.held_bytes = 2 + 2 * len(turn.asked), made.size
        if end is None:
            d.result = Result(Status.WAITING, None, finished_us, advance=made)
        elif end.to is not None:
            data, signal = end.value, None
            if turn.resumed is not None:
                data, signal = turn.resumed, end.value
            target, ce_type = self._target(d, end.to), end.ce_type.encode() or _RESUMED
            d.result = Result(
                target.status, data, finished_us, target, ce_type, advance=made, signal=signal
            )
        elif end.status is Status.DONE:
            d.result = Result(end.status, end.value, finished_us, advance=made)
        else:
            error = error_of(end)
            d.result = Result(end.status, None, finished_us, error=error, advance=made)

    def encode(self, model: BaseModel) -> tuple[str, bytes]:
        """A payload's type and bytes. Raises `BadRecord` for one that is too large."""
        return self._type_of(type(model)).decode(), self._payload(model)

    def _child(self, d: Delivery, child: BaseModel | Emit) -> Child:
        if isinstance(child, Emit):
            target, model = self._target(d, child.to), child.model
        elif self._only_target is not None:
            target, model = self._only_target, child
        else:
            raise BadSetup(
                f"Stage {self._stage.name} forks a plain {type(child).__name__}, but does not "
                "declare exactly one `emits`; fork Emit(to, model)."
            )
        if target.status is Status.DONE:
            raise BadSetup(
                f"Stage {self._stage.name} forked job {d.job_id} into the sink {target.topic}; a "
                "child starts at a stage."
            )
        return Child(target, self._type_of(type(model)), self._payload(model))

    @staticmethod
    def fail(
        d: Delivery, error: JobError, finished_us: int, status: Status = Status.FAILED
    ) -> None:
        """Make a dead letter the result of `d`."""
        d.result = Result(status, None, finished_us, error=error)

    @staticmethod
    def cancel(d: Delivery, error: JobError, ordered: str, finished_us: int) -> None:
        """Make `cancelled` the result of `d`: no dead letter, since nothing is to be mended. What
        was cancelled is the job `ordered`, this one or an ancestor."""
        d.cancelled_with = ordered
        d.result = Result(Status.CANCELLED, None, finished_us, error=error)

    @staticmethod
    def wait(d: Delivery, error: JobError, wakes_us: int, finished_us: int) -> None:
        """Make a wait for a timer the result of `d`, whose `attempt` is what it has spent."""
        wakes_us = min(wakes_us, MAX_DUE_MS * 1000)
        d.result = Result(Status.WAITING, None, finished_us, error=error, wakes_us=wakes_us)

    @staticmethod
    def wait_for_branches(
        d: Delivery, join: str, first: int, expected: int, finished_us: int
    ) -> None:
        """Make the wait for branches of an earlier fork the result of `d`, whose step it is."""
        d.result = Result(Status.WAITING, None, finished_us, split=Split(join, first, expected))

    def records(self, d: Delivery) -> Sequence[OutRecord]:
        """The records of a concluded delivery: its state, and a hand-off, a dead letter, a timer or
        those of a fork; and if a child is over, what its parent's join is told.

        Made when they are produced, not before: what a stage holds in flight stays small, and a
        commit that is repeated writes the same again.
        """
        result = d.result
        if result is None:
            return ()
        found = self._own_records(d, result)
        if result.advance is not None:
            time = self._iso(result.finished_us)
            found = *found, *self._runs.records(d, result.advance, time)
        if b"/" in d.key and result.status.terminal:
            found = *found, self._arrival(d, result)
        return found

    def _own_records(self, d: Delivery, result: Result) -> tuple[OutRecord, ...]:
        if result.target is not None:
            return self._state(d, result), self._hand_off_record(d, result, result.target)
        if result.split is not None:
            time = self._iso(result.finished_us)
            return self._state(d, result), *self._forks.records(d, result.split, time)
        if result.wakes_us is not None:
            return self._state(d, result), self._timer_record(d, result.wakes_us)
        if result.error is not None and result.status is not Status.CANCELLED:
            return self._state(d, result), self._dead_letter_record(d, result.error)
        return (self._state(d, result),)

    def _arrival(self, d: Delivery, result: Result) -> OutRecord:
        error = result.error
        if error is not None:
            value = orjson.dumps({"kind": error.kind, "message": error.message})
        else:
            value = result.data or b"null"
        return self._forks.arrival(d, result.status, value, self._iso(result.finished_us))

    def _hand_off_record(self, d: Delivery, result: Result, target: Target) -> OutRecord:
        key, seq = d.key, d.seq
        # Ours first: the next stage then need not search.
        headers = [
            (h.HOP, b"%d;%d;%b" % (seq, d.born_us, self._flow_name)),
            (h.TRACEPARENT, traceparent_of_key(key, seq)),
            (h.CE_ID, b"%b:%d" % (key, seq)),
            (h.CE_TYPE, result.ce_type),
            (h.CE_TIME, self._iso(result.finished_us)),
            *self._static_headers,
        ]
        if d.keys_of is not None:
            headers.insert(0, (h.KEYS_OF, d.keys_of.encode()))
        if result.signal is not None:
            headers.insert(0, (h.SIGNAL, result.signal))
        if d.shielded is not None:
            headers.insert(0, (h.SHIELDED, d.shielded.encode()))
        if d.children:
            headers.insert(0, (h.CHILDREN, b"%d" % d.children))
        return target.topic, key, result.data, headers

    def _timer_record(self, d: Delivery, wakes_us: int) -> OutRecord:
        """What the dispatcher will write to this stage's topic: the consumed record again, as the
        step after this one, with the attempts that are spent."""
        headers = returned_headers(
            d.raw_headers(),
            kind=b"retry",
            flow=self._flow_name,
            seq=d.seq,
            born_us=d.born_us,
            attempts=d.attempt,
            raw_key=d.message.key(),
            job=d.key,
        )
        # Whole milliseconds, rounded up: never before its time.
        due_ms = -(-wakes_us // 1000)
        timer = Timer(due_ms, d.tracker.topic, d.job_id, d.message.value(), headers)
        return encode(timer, self._timers_topic)

    def _dead_letter_record(self, d: Delivery, error: JobError) -> OutRecord:
        """The original record, complete: raw key, value and headers, and what is known of it."""
        message = d.message
        headers: h.Headers = [
            *d.raw_headers(),
            (h.DLQ_TOPIC, d.tracker.topic.encode()),
            (h.DLQ_PARTITION, b"%d" % d.tracker.partition),
            (h.DLQ_OFFSET, b"%d" % d.offset),
            (h.DLQ_GROUP, self._group),
            (h.DLQ_DELIVERY_COUNT, b"%d" % max(1, d.attempt)),
            (h.DLQ_MESSAGE, error.message.encode()),
            (h.DLQ_ERROR, error.kind.encode()),
            (h.DLQ_STAGE, self._stage.name.encode()),
            (h.DLQ_JOB, d.job_id.encode()),
            (h.DLQ_SEQ, b"%d" % d.seq),
            (h.DLQ_TIMESTAMP, b"%d" % message.timestamp()[1]),
        ]
        return self._dead_letter_topic, message.key(), message.value(), headers

    def _payload(self, model: BaseModel) -> bytes:
        data = model.__pydantic_serializer__.to_json(model, by_alias=True)
        if len(data) > self._max_payload_bytes:
            raise BadRecord(
                f"The output of stage {self._stage.name} has {len(data)} bytes; the limit is "
                f"{self._max_payload_bytes}."
            )
        return data

    def _state(self, d: Delivery, result: Result) -> OutRecord:
        """`JobState` as JSON. Formatted, not dumped: ids are hex, numbers are numbers, the rest is
        JSON already; tests hold it to the model."""
        more = b""
        if (error := result.error) is not None:
            more += b'"error":%b,' % orjson.dumps({"kind": error.kind, "message": error.message})
            if result.wakes_us is not None:
                more += b'"wakesAt":"%b",' % self._iso(result.wakes_us)
        if d.link is not None:
            more += b'"link":%b,' % orjson.dumps(d.link)
        if d.usage is not None:
            more += b'"usage":%b,' % d.usage.to_json()
        to = b"[]" if result.target is None else result.target.names
        if result.split is not None:
            to, more = _TO_JOIN, more + b'"fork":%b,' % result.split.state()
        if result.advance is not None:
            more += b'"run":%b,' % result.advance.state
            if result.advance.beginning is not None:
                to = _TO_JOIN
        if b"/" in d.key:
            more += b'"parent":%b,' % orjson.dumps(parent_of(d.job_id))
            if d.forked_at is not None:
                more += b'"forkedAt":%d,' % d.forked_at
            if d.shielded is not None:
                more += b'"shielded":%b,' % orjson.dumps(d.shielded)
        value = _STATE % (
            d.key,
            _STATUS[result.status],
            d.seq,
            b"null" if result.data is None else result.data,
            d.attempt,
            self._iso(result.finished_us),
            to,
            d.born_us,
            d.produced_us,
            d.polled_us,
            d.started_us or d.polled_us,
            result.finished_us,
            d.tracker.json,
            d.message.offset(),
            more,
            self._state_end,
        )
        return self._state_topic, d.key, value, None

    def _type_of(self, model: type[BaseModel]) -> bytes:
        known = self._types.get(model)
        if known is None:
            name = getattr(model, "CE_TYPE", None) or f"{self._flow.name}.{model.__name__.lower()}"
            known = self._types[model] = str(name).encode()
        return known

    def _iso(self, epoch_us: int) -> bytes:
        """ISO 8601, UTC, milliseconds; many records of a batch share one."""
        ms = epoch_us // 1000
        if ms != self._now_ms:
            second = ms // 1000
            if second != self._now_s:
                moment = datetime.fromtimestamp(second, UTC)
                self._text_s = moment.strftime("%Y-%m-%dT%H:%M:%S").encode()
                self._now_s = second
            self._text_ms = b"%b.%03dZ" % (self._text_s, ms % 1000)
            self._now_ms = ms
        return self._text_ms
