"""The context that a handler runs in: its own spans (HTTP, SQL, model calls) attach to the hop."""

from __future__ import annotations

from contextvars import Token

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context


class HopContext:
    """Makes a hop's span the current one. Costs nothing where no tracer provider was set up.

    The span itself is not recorded here: it is derived from the committed state, so that a retry or
    a restart cannot double it.
    """

    def __init__(self) -> None:
        self.on = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    def enter(self, traceparent: str) -> Token[Context] | None:
        """`traceparent`: W3C, of the hop. Give the result to `leave`."""
        if not self.on:
            return None
        span = SpanContext(
            trace_id=int(traceparent[3:35], 16),
            span_id=int(traceparent[36:52], 16),
            is_remote=False,
            trace_flags=TraceFlags(int(traceparent[53:55], 16)),
        )
        return attach(set_span_in_context(NonRecordingSpan(span), Context()))

    @staticmethod
    def leave(token: Token[Context]) -> None:
        detach(token)
