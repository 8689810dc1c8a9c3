"""From an outcome to records: the job's state, the hand-off, the dead letter. Pure.

Everything that is equal for all records of a stage is made once, here, since this runs for each
record of the hot path.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, assert_never

import orjson
from pydantic import BaseModel

from schemas import headers as h
from schemas.ids import span_id, trace_id_of
from schemas.state import VERSION, JobError, Status
from streams.config import Settings
from streams.errors import BadRecord, BadSetup
from streams.flow import Flow, Stage
from streams.outcome import Done, Emit, Outcome, Reject, Retry
from streams.runtime.delivery import Delivery

_TRACE_FLAGS = "01"


def now_us() -> int:
    """Epoch microseconds."""
    return time.time_ns() // 1000


class RecordWriter:
    """Writes the records of one stage in one worker."""

    def __init__(self, flow: Flow, stage: Stage[Any, Any], settings: Settings, worker: str) -> None:
        names = settings.names
        self._flow, self._stage, self._worker = flow, stage, worker
        self._max_payload_bytes = settings.max_payload_bytes
        self._state_topic = names.job_state_topic
        self._dead_letter_topic = names.dead_letter_topic(flow.name, stage.name)
        self._group = names.stage_group(flow.name, stage.name).encode()
        self._topics = {to: names.stage_topic(flow.name, to) for to in stage.emits}
        self._targets = {
            to: (self._topics[to], Status.DONE if to in flow.sinks else Status.RUNNING, (to,))
            for to in stage.emits
        }
        self._static_headers: h.Headers = [
            (h.CE_SPECVERSION, b"1.0"),
            (h.CE_SOURCE, f"handoff/{flow.name}/{stage.name}".encode()),
            (h.CONTENT_TYPE, b"application/json"),
            (h.FLOW, flow.name.encode()),
        ]
        self._types: dict[type[BaseModel], tuple[str, bytes]] = {}
        self._now_ms = 0
        self._now_text = ""

    def traceparent(self, d: Delivery) -> str:
        """The W3C context of this hop: the handler runs inside it, the hand-off carries it on."""
        return f"00-{trace_id_of(d.job_id)}-{span_id(d.job_id, d.seq)}-{_TRACE_FLAGS}"

    def outcome(
        self, d: Delivery, outcome: Outcome | BaseModel, traceparent: str, finished_us: int
    ) -> None:
        """Put the records of a finished hop into `d.out`.

        Raises `BadRecord` for an outcome that can never be written (too large), `BadSetup` for one
        that the stage did not declare.
        """
        if isinstance(outcome, BaseModel):
            if len(self._stage.emits) != 1:
                raise BadSetup(
                    f"Stage {self._stage.name} returned a plain {type(outcome).__name__}, but does "
                    "not declare exactly one `emits`; return Emit(to, model) or Done(model)."
                )
            self._hand_off(d, self._stage.emits[0], outcome, traceparent, finished_us)
            return
        match outcome:
            case Emit(to=to, model=model):
                self._hand_off(d, to, model, traceparent, finished_us)
            case Done(result=result):
                data = None if result is None else self._payload(result)
                d.out.append(self._state(d, Status.DONE, data, (), finished_us))
            case Reject(reason=reason):
                self.dead_letter(d, JobError(kind="rejected", message=reason), finished_us)
            case Retry():
                raise AssertionError("the stage loop handles Retry before it comes here")
            case _:
                assert_never(outcome)

    def _hand_off(
        self, d: Delivery, to: str, model: BaseModel, traceparent: str, finished_us: int
    ) -> None:
        target = self._targets.get(to)
        if target is None:
            declared = ", ".join(self._stage.emits) or "nothing"
            raise BadSetup(
                f"Stage {self._stage.name} handed job {d.job_id} to {to}, but declares {declared}."
            )
        topic, status, handed_to = target
        data = self._payload(model)
        d.out.append(self._state(d, status, data, handed_to, finished_us))
        seq = str(d.seq)
        _, ce_type = self._type_of(type(model))
        d.out.append(
            (
                topic,
                d.key,
                data,
                [
                    *self._static_headers,
                    (h.CE_ID, f"{d.job_id}:{seq}".encode()),
                    (h.CE_TYPE, ce_type),
                    (h.CE_TIME, self._iso(finished_us).encode()),
                    (h.SEQ, seq.encode()),
                    (h.BORN, b"%d" % d.born_us),
                    (h.TRACEPARENT, traceparent.encode()),
                ],
            )
        )

    def dead_letter(
        self,
        d: Delivery,
        error: JobError,
        finished_us: int,
        *,
        status: Status = Status.FAILED,
    ) -> None:
        """The original record, complete, on the dead-letter topic, and the job's state."""
        message = d.message
        d.out.clear()
        d.out.append(self._state(d, status, None, (), finished_us, error))
        raw_headers = message.headers() if d.fault is None or "headers" not in d.fault else None
        key = message.key()
        about: h.Headers = [
            (h.DLQ_TOPIC, d.tracker.topic.encode()),
            (h.DLQ_PARTITION, b"%d" % d.tracker.partition),
            (h.DLQ_OFFSET, b"%d" % d.offset),
            (h.DLQ_GROUP, self._group),
            (h.DLQ_DELIVERY_COUNT, b"%d" % max(1, d.attempt)),
            (h.DLQ_MESSAGE, error.message.encode()[:2000]),
            (h.DLQ_ERROR, error.kind.encode()),
            (h.DLQ_STAGE, self._stage.name.encode()),
            (h.DLQ_JOB, d.job_id.encode()),
            (h.DLQ_SEQ, b"%d" % d.seq),
            (h.DLQ_TIMESTAMP, b"%d" % message.timestamp()[1]),
        ]
        d.out.append(
            (self._dead_letter_topic, key, message.value(), [*(raw_headers or []), *about])
        )

    def _payload(self, model: BaseModel) -> bytes:
        data = model.__pydantic_serializer__.to_json(model, by_alias=True)
        if len(data) > self._max_payload_bytes:
            raise BadRecord(
                f"The output of stage {self._stage.name} has {len(data)} bytes; the limit is "
                f"{self._max_payload_bytes}."
            )
        return data

    def _state(
        self,
        d: Delivery,
        status: Status,
        data: bytes | None,
        to: tuple[str, ...],
        finished_us: int,
        error: JobError | None = None,
    ) -> tuple[str, bytes, bytes, None]:
        tracker = d.tracker
        state: dict[str, Any] = {
            "v": VERSION,
            "traceId": d.job_id,
            "flow": self._flow.name,
            "stage": self._stage.name,
            "status": status.value,
            "seq": d.seq,
            "data": None if data is None else orjson.Fragment(data),
            "attempts": d.attempt,
            "updatedAt": self._iso(finished_us),
            "to": to,
            "timing": {
                "bornUs": d.born_us,
                "producedUs": d.produced_us,
                "polledUs": d.polled_us,
                "startedUs": d.started_us,
                "finishedUs": finished_us,
            },
            "worker": self._worker,
            "consumed": {
                "topic": tracker.topic,
                "topicId": tracker.topic_id,
                "partition": tracker.partition,
                "offset": d.offset,
            },
        }
        if error is not None:
            state["error"] = {"kind": error.kind, "message": error.message}
        if d.link is not None:
            state["link"] = d.link
        return self._state_topic, d.key, orjson.dumps(state), None

    def _type_of(self, model: type[BaseModel]) -> tuple[str, bytes]:
        known = self._types.get(model)
        if known is None:
            name = getattr(model, "CE_TYPE", None) or f"{self._flow.name}.{model.__name__.lower()}"
            known = self._types[model] = (name, name.encode())
        return known

    def _iso(self, epoch_us: int) -> str:
        """ISO 8601, UTC, milliseconds; many records of a batch share one."""
        ms = epoch_us // 1000
        if ms != self._now_ms:
            self._now_ms = ms
            moment = datetime.fromtimestamp(ms / 1000, UTC)
            self._now_text = moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
        return self._now_text
