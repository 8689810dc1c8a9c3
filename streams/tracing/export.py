"""OTLP export, set up by the standard `OTEL_*` variables; off when no endpoint is named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from streams.errors import BadWorld
from streams.tracing.sampling import sampler_from_environment
from streams.tracing.spans import HopRecord, SpanWriter

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter


def tracing_wanted() -> bool:
    """Whether the environment names a collector (OpenTelemetry SDK configuration)."""
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(os.environ.get(n) for n in named)


def service_resource() -> Resource:
    """Who sends: by the standard variables, `handoff` where they name no service."""
    # With OTEL_RESOURCE_ATTRIBUTES; OTEL_SERVICE_NAME wins over a name that stands there.
    found = Resource.create()
    if found.attributes.get("service.name", "unknown_service").startswith("unknown_service"):  # type: ignore[union-attr]
        found = found.merge(Resource({"service.name": "handoff"}))
    return found


def _otlp_exporter() -> OTLPSpanExporter:
    # Imported late: a tenth of a second at the start of every worker, for those that trace.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def configure_tracing() -> bool:
    """Install the tracer provider for spans that handlers make. False when tracing is off.

    Export is batched in a thread of its own: a slow or dead collector loses spans, never work.
    """
    if not tracing_wanted():
        return False
    provider = TracerProvider(resource=service_resource())
    provider.add_span_processor(BatchSpanProcessor(_otlp_exporter()))
    trace.set_tracer_provider(provider)
    return True


class SpanSink:
    """Exports the hop spans of committed states; used by the tracer agent.

    The exporter's endpoint, headers, TLS, compression, time-out and repeats are those of the
    standard variables.
    """

    def __init__(self) -> None:
        self._exporter = _otlp_exporter()
        # The id of this process would make two spans of one that is exported again after a restart.
        resource = {
            name: str(value)
            for name, value in service_resource().attributes.items()
            if name != "service.instance.id"
        }
        self._writer = SpanWriter(resource, sampler_from_environment())

    def export(self, hops: Sequence[HopRecord]) -> int:
        """Blocks until the collector has the spans; how many. Raises `BadWorld` when it takes none.

        After that or a crash the same spans are sent again, which is why their ids are derived.
        """
        request, spans = self._writer.request(hops)
        if spans:
            # The SDK's exporter would encode spans of its own kind, at ten times the cost; what it
            # sends them with is private, so the exporter's version is pinned and a test sends.
            sent = self._exporter._client.export(request.SerializeToString())
            if not sent.success:
                why = sent.error or f"it answered {sent.status_code}"
                raise BadWorld(
                    f"The OpenTelemetry collector did not take {spans} spans ({why}). They are "
                    "kept in job-state and sent again."
                )
        return spans

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
