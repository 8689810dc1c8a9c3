"""OpenTelemetry: the hop's context around handlers, and spans derived from committed states."""

from streams.tracing.context import HopContext
from streams.tracing.export import SpanSink, configure_tracing, tracing_wanted
from streams.tracing.positions import TracerPositions

__all__ = ["HopContext", "SpanSink", "TracerPositions", "configure_tracing", "tracing_wanted"]
