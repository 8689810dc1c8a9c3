"""OTLP export, set up by the standard `OTEL_*` variables; off when no endpoint is named."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from schemas.state import JobState
from streams.errors import BadWorld
from streams.tracing.spans import hop_span


def tracing_wanted() -> bool:
    """Whether the environment names a collector (OpenTelemetry SDK configuration)."""
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(os.environ.get(n) for n in named)


def _resource() -> Resource:
    name = os.environ.get("OTEL_SERVICE_NAME", "handoff")
    return Resource.create({"service.name": name})


def _otlp_exporter() -> SpanExporter:
    # Imported late: a tenth of a second at the start of every worker, for those that trace.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def configure_tracing() -> bool:
    """Install the tracer provider for spans that handlers make. False when tracing is off.

    Export is batched in a thread of its own: a slow or dead collector loses spans, never work.
    """
    if not tracing_wanted():
        return False
    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(_otlp_exporter()))
    trace.set_tracer_provider(provider)
    return True


class SpanSink:
    """Exports the hop spans of committed states; used by the tracer agent."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._exporter = exporter or _otlp_exporter()
        self._resource = _resource()

    def export(self, states: Sequence[JobState]) -> int:
        """Blocks until the collector has the spans. Raises `BadWorld` when it takes none."""
        spans = [s for s in (hop_span(state, self._resource) for state in states) if s is not None]
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise BadWorld("The OpenTelemetry collector did not take the spans; they are kept.")
        return len(spans)

    def close(self) -> None:
        self._exporter.shutdown()
