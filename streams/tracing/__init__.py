"""OpenTelemetry: the hop's context around handlers, and spans derived from committed states."""

from streams.tracing.context import HopContext, stamp_ids
from streams.tracing.export import SpanSink, configure_tracing, tracing_wanted
from streams.tracing.positions import TracerPositions
from streams.tracing.spans import HopRecord, read_hop

__all__ = [
    "HopContext",
    "HopRecord",
    "SpanSink",
    "TracerPositions",
    "configure_tracing",
    "read_hop",
    "stamp_ids",
    "tracing_wanted",
]
