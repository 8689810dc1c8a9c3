"""Hop spans from committed states: names and attributes by the OpenTelemetry messaging conventions.

Conventions 1.36 (development status), https://opentelemetry.io/docs/specs/semconv/messaging/. Ids
come from (traceId, seq): exporting a state again gives the same span again, not another one.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from schemas.ids import span_id, trace_id_of
from schemas.state import JobState
from schemas.state import Status as JobStatus

_SCOPE = InstrumentationScope("handoff")
_TRACEPARENT_LENGTH = 55


def hop_span(state: JobState, resource: Resource) -> ReadableSpan | None:
    """The span `process <topic>` of one step; None for a state without timings."""
    if state.timing is None or state.consumed is None:
        return None
    failed = state.status is JobStatus.FAILED
    parent = _context(state.trace_id, state.seq - 1) if state.seq > 1 else None
    link = _foreign(state.link)
    return ReadableSpan(
        name=f"process {state.consumed.topic}",
        context=_context(state.trace_id, state.seq),
        parent=parent,
        resource=resource,
        attributes=_attributes(state, state.consumed.topic),
        links=() if link is None else (Link(link),),
        kind=SpanKind.CONSUMER,
        status=Status(StatusCode.ERROR, state.error.kind if state.error else None)
        if failed
        else Status(StatusCode.UNSET),
        start_time=state.timing.polled_us * 1000,
        end_time=state.timing.finished_us * 1000,
        instrumentation_scope=_SCOPE,
    )


def _attributes(state: JobState, topic: str) -> dict[str, AttributeValue]:
    assert state.consumed is not None
    assert state.timing is not None
    found: dict[str, AttributeValue] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(state.consumed.partition),
        "messaging.kafka.offset": state.consumed.offset,
        "messaging.kafka.message.key": state.trace_id,
        "messaging.consumer.group.name": topic,
        "handoff.flow": state.flow,
        "handoff.stage": state.stage,
        "handoff.seq": state.seq,
        "handoff.status": state.status.value,
        "handoff.attempts": state.attempts,
        "handoff.queued_ms": max(0, state.timing.polled_us - state.timing.produced_us) / 1000,
    }
    if state.error is not None:
        found["error.type"] = state.error.kind
    return found


def _context(job_id: str, seq: int) -> SpanContext:
    return SpanContext(
        trace_id=int(trace_id_of(job_id), 16),
        span_id=int(span_id(job_id, seq), 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _foreign(traceparent: str | None) -> SpanContext | None:
    """A sender's own span, if its `traceparent` is well formed (W3C Trace Context, level 1)."""
    if traceparent is None or len(traceparent) < _TRACEPARENT_LENGTH:
        return None
    try:
        context = SpanContext(
            trace_id=int(traceparent[3:35], 16),
            span_id=int(traceparent[36:52], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(traceparent[53:55], 16)),
        )
    except ValueError:
        return None
    return context if context.is_valid else None
