"""From committed states to OTLP spans. Pure.

One `process <topic>` span for each step, and for a job's first step the `send <topic>` span of its
submission before it. Ids come from (traceId, seq), so a state that is exported again gives the same
spans again, not others. The `traceparent` of a record on the wire names the step that wrote it,
which is the parent here.

The messages are made directly, not by way of the SDK's spans: that costs a tenth. What is equal for
all steps of a stage on a partition is made once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from schemas.ids import span_id, trace_id_of
from schemas.state import HopTiming, JobError
from schemas.state import Status as JobStatus
from schemas.usage import Usage, read_usage
from streams.tracing import conventions as c
from streams.tracing.sampling import HeadSampler

_SCOPE: Final = "handoff"
_SAMPLED: Final = 1
_FLAGS: Final = _SAMPLED | SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_FLAGS_REMOTE: Final = _FLAGS | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_TRACEPARENT_LENGTH: Final = 55
_MAX_INT: Final = 2**63 - 1
#: More static parts than a fleet has stages times partitions times outcomes; a bound all the same.
_MAX_PARTS: Final = 10_000
#: Attributes that differ from record to record come first and are filled in: see `_fill`.
_TO_FILL: Final = tuple(KeyValue(key=key) for key in (c.OFFSET, c.MESSAGE_KEY, c.MESSAGE_ID))


class _Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )


class Place(_Wire):
    """Where the consumed record lies."""

    topic: str
    partition: int
    offset: int


class HopRecord(_Wire):
    """What a span needs of a `JobState`: its payload and the rest are passed over unread."""

    trace_id: str
    flow: str
    stage: str
    status: JobStatus
    seq: int
    attempts: int
    timing: HopTiming | None = None
    consumed: Place | None = None
    error: JobError | None = None
    worker: str | None = None
    link: str | None = None
    parent: str | None = None
    forked_at: int | None = None
    usage: Any = None


def read_hop(value: bytes | None) -> HopRecord | None:
    """The step that a `job-state` record spells; None for a tombstone and for what is no state,
    which the projector keeps and reports."""
    if value is None:
        return None
    try:
        hop = HopRecord.model_validate_json(value)
        bytes.fromhex(trace_id_of(hop.trace_id))
    except ValueError:  # a ValidationError is one
        return None
    return hop


class SpanWriter:
    """Writes requests with the spans of the jobs that `sampler` keeps, all from one `resource`."""

    def __init__(self, resource: dict[str, str], sampler: HeadSampler) -> None:
        self._resource = [_text(name, value) for name, value in resource.items()]
        self._sampler = sampler
        self._parts: dict[tuple[object, ...], Span] = {}

    def request(self, hops: Sequence[HopRecord]) -> tuple[ExportTraceServiceRequest, int]:
        """The request, and how many spans it has. A step without timings has none."""
        found = ExportTraceServiceRequest()
        of_resource = found.resource_spans.add(schema_url=c.SCHEMA_URL)
        of_resource.resource.attributes.extend(self._resource)
        of_scope = of_resource.scope_spans.add(schema_url=c.SCHEMA_URL)
        of_scope.scope.name = _SCOPE
        spans = of_scope.spans
        sampler = self._sampler
        for hop in hops:
            if hop.timing is None or hop.consumed is None:
                continue
            trace_id = bytes.fromhex(trace_id_of(hop.trace_id))
            if not sampler.always and not sampler.keeps(int.from_bytes(trace_id)):
                continue
            link = _foreign(hop.link)
            if hop.seq == 1 and hop.forked_at is None:
                self._send(spans.add(), trace_id, hop, hop.consumed, hop.timing, link)
            self._process(spans.add(), trace_id, hop, hop.consumed, hop.timing, link)
        return found, len(spans)

    def _send(
        self,
        span: Span,
        trace_id: bytes,
        hop: HopRecord,
        place: Place,
        timing: HopTiming,
        link: Span.Link | None,
    ) -> None:
        part = (place.topic, place.partition, hop.flow)
        span.CopyFrom(self._parts.get(part) or self._keep(part, _send_part(hop, place)))
        span.trace_id, span.span_id, span.flags = trace_id, _span_id(hop.trace_id, 0), _FLAGS
        span.start_time_unix_nano = timing.born_us * 1000
        span.end_time_unix_nano = max(timing.born_us, timing.produced_us) * 1000
        _fill(span, hop, place, 0)
        if link is not None:
            span.links.append(link)

    def _process(
        self,
        span: Span,
        trace_id: bytes,
        hop: HopRecord,
        place: Place,
        timing: HopTiming,
        link: Span.Link | None,
    ) -> None:
        part = (place.topic, place.partition, hop.flow, hop.stage, hop.status, hop.worker)
        span.CopyFrom(self._parts.get(part) or self._keep(part, _process_part(hop, place)))
        span.trace_id, span.span_id = trace_id, _span_id(hop.trace_id, hop.seq)
        span.parent_span_id, span.flags = _parent(hop), _FLAGS_REMOTE
        span.start_time_unix_nano = timing.polled_us * 1000
        span.end_time_unix_nano = max(timing.polled_us, timing.finished_us) * 1000
        _fill(span, hop, place, hop.seq - 1)
        _, _, _, seq, attempts, queued, *_ = span.attributes
        seq.value.int_value, attempts.value.int_value = hop.seq, hop.attempts
        queued.value.double_value = max(0, timing.polled_us - timing.produced_us) / 1000
        if hop.error is not None:
            span.attributes.append(_text(c.ERROR_TYPE, hop.error.kind))
            if hop.status is JobStatus.FAILED:
                span.status.message = hop.error.message
        if hop.usage is not None and (usage := read_usage(hop.usage)) is not None:
            span.attributes.extend(_spent(usage))
        if link is not None:
            span.links.append(link)

    def _keep(self, part: tuple[object, ...], span: Span) -> Span:
        if len(self._parts) >= _MAX_PARTS:
            self._parts.clear()
        return self._parts.setdefault(part, span)


def _send_part(hop: HopRecord, place: Place) -> Span:
    span = Span(name=c.span_name(c.SEND, place.topic), kind=Span.SPAN_KIND_PRODUCER)
    span.attributes.extend(
        (*_TO_FILL, *_messaging(c.SEND, place), _text(c.FLOW, hop.flow)),
    )
    return span


def _process_part(hop: HopRecord, place: Place) -> Span:
    span = Span(name=c.span_name(c.PROCESS, place.topic), kind=Span.SPAN_KIND_CONSUMER)
    span.attributes.extend(
        (
            *_TO_FILL,
            *(KeyValue(key=key) for key in (c.SEQ, c.ATTEMPTS, c.QUEUED_MS)),
            *_messaging(c.PROCESS, place),
            # A stage's group has the name of its topic (`streams.names`).
            _text(c.CONSUMER_GROUP, place.topic),
            _text(c.FLOW, hop.flow),
            _text(c.STAGE, hop.stage),
            _text(c.STATUS, hop.status.value),
            _text(c.WORKER, hop.worker or ""),
        )
    )
    if hop.status is JobStatus.FAILED:
        span.status.code = Status.STATUS_CODE_ERROR
    return span


def _messaging(operation: str, place: Place) -> tuple[KeyValue, ...]:
    return (
        _text(c.SYSTEM, c.KAFKA),
        _text(c.OPERATION_NAME, operation),
        _text(c.OPERATION_TYPE, operation),
        _text(c.DESTINATION, place.topic),
        _text(c.PARTITION, str(place.partition)),
    )


def _fill(span: Span, hop: HopRecord, place: Place, writer_seq: int) -> None:
    """Of the consumed record: its offset, key, and the id that its writer gave it (`ce_id`)."""
    offset, key, message_id, *_ = span.attributes
    offset.value.int_value = place.offset
    key.value.string_value = hop.trace_id
    message_id.value.string_value = f"{hop.trace_id}:{writer_seq}"


def _spent(usage: Usage) -> Iterator[KeyValue]:
    """Tokens are those of all models together; names are told where there is but one."""
    for key, names in (
        (c.GEN_AI_OPERATION, {each.operation for each in usage.models}),
        (c.GEN_AI_REQUEST_MODEL, {each.request_model for each in usage.models}),
        (c.GEN_AI_RESPONSE_MODEL, {each.response_model for each in usage.models}),
    ):
        if len(known := names - {None}) == 1:
            yield _text(key, str(*known))
    for key, count in (
        (c.GEN_AI_INPUT_TOKENS, usage.input_tokens),
        (c.GEN_AI_OUTPUT_TOKENS, usage.output_tokens),
        (c.MODEL_CALLS, usage.calls),
        (c.MODEL_CACHED, usage.cached),
    ):
        yield KeyValue(key=key, value=AnyValue(int_value=min(count, _MAX_INT)))


def _parent(hop: HopRecord) -> bytes:
    """The hop before; of a child's first one, that of its parent which forked it."""
    if hop.forked_at is not None and hop.parent is not None:
        return _span_id(hop.parent, hop.forked_at)
    return _span_id(hop.trace_id, hop.seq - 1)


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _span_id(job_id: str, seq: int) -> bytes:
    return bytes.fromhex(span_id(job_id, seq))


def _foreign(traceparent: str | None) -> Span.Link | None:
    """A sender's own span, if its `traceparent` is well formed (W3C Trace Context, level 1)."""
    if traceparent is None or len(traceparent) < _TRACEPARENT_LENGTH:
        return None
    try:
        trace_id, span = bytes.fromhex(traceparent[3:35]), bytes.fromhex(traceparent[36:52])
        flags = int(traceparent[53:55], 16) | _FLAGS_REMOTE & ~_SAMPLED
    except ValueError:
        return None
    if len(trace_id) != 16 or len(span) != 8 or not any(trace_id) or not any(span):
        return None
    return Span.Link(trace_id=trace_id, span_id=span, flags=flags)
