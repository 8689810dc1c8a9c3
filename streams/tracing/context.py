"""The context that a handler runs in: its own spans (HTTP, SQL, model calls) attach to the hop."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context as SpanScope
from opentelemetry.context import attach
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

from schemas.ids import span_id, trace_id_of
from streams.context import Context
from streams.tracing.sampling import HeadSampler, sampler_of

T = TypeVar("T")

#: The key under which OpenTelemetry keeps the current span. With it a scope that holds nothing else
#: is made directly: `set_span_in_context` copies one twice, a fifth of the cost of entering a hop.
[_SPAN] = set_span_in_context(INVALID_SPAN, SpanScope())

_job: contextvars.ContextVar[Context] = contextvars.ContextVar("handoff_job")


class _HopSpan(NonRecordingSpan):
    """The span of a hop as its handler sees it: ids are made when somebody asks for them, since
    most runs make no span of their own."""

    def __init__(self, job: Context, sampler: HeadSampler) -> None:
        self._job, self._sampler = job, sampler

    def get_span_context(self) -> SpanContext:
        job = self._job
        trace_id = int(trace_id_of(job.trace_id), 16)
        flags = TraceFlags.SAMPLED if self._sampler.keeps(trace_id) else TraceFlags.DEFAULT
        span = int(span_id(job.trace_id, job.seq), 16)
        return SpanContext(trace_id, span, is_remote=False, trace_flags=TraceFlags(flags))

    def __repr__(self) -> str:
        return f"HopSpan({self.get_span_context()!r})"


class HopContext:
    """Runs handlers inside their hops, each in a copy of the context that this was made in.

    Whatever a run leaves behind (a span that it never ended, variables of its own) stays in its
    copy, also when it raised, was cancelled or ran out of time. The hop's span is the current one
    where a tracer provider is set up; it is not recorded here but derived from the committed state,
    so that a retry or a restart cannot double it.
    """

    def __init__(self) -> None:
        self._clean = contextvars.copy_context()
        provider = trace.get_tracer_provider()
        self._sampler = sampler_of(provider)
        set_up = not isinstance(provider, trace.ProxyTracerProvider)
        self.on = set_up and not self._sampler.never

    def fresh(self) -> contextvars.Context:
        """A context for the task of one run, which then calls `enter`."""
        return self._clean.copy()

    def call(self, handler: Callable[[Any, Context], T], model: Any, job: Context) -> T:
        """What a sync handler returns or raises."""
        return self._clean.copy().run(self._call, handler, model, job)

    def _call(self, handler: Callable[[Any, Context], T], model: Any, job: Context) -> T:
        self.enter(job)
        return handler(model, job)

    def enter(self, job: Context) -> None:
        """Make the hop that `job` will commit the current span of the running context."""
        _job.set(job)
        if self.on:
            attach(SpanScope({_SPAN: _HopSpan(job, self._sampler)}))


def stamp_ids(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor: `trace_id` and `span_id` of the span or else of the hop that logs."""
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event.setdefault("trace_id", trace.format_trace_id(span.trace_id))
        event.setdefault("span_id", trace.format_span_id(span.span_id))
    elif (job := _job.get(None)) is not None:
        event.setdefault("trace_id", trace_id_of(job.trace_id))
        event.setdefault("span_id", span_id(job.trace_id, job.seq))
    return event
