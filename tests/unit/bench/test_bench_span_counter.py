"""The receiver of the tracing workload, by the SDK's own way of sending."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from infra.otel.span_counter import SpanCounter


def request_of(spans: int) -> bytes:
    request = ExportTraceServiceRequest()
    of_scope = request.resource_spans.add().scope_spans.add()
    for _ in range(spans):
        of_scope.spans.add(name="hop")
    return request.SerializeToString()


def wait_for(counter: SpanCounter, spans: int) -> None:
    """It answers before it counts."""
    deadline = time.monotonic() + 30
    while counter.spans < spans and time.monotonic() < deadline:
        time.sleep(0.005)


def test_the_rate_leaves_the_first_request_out_since_its_making_was_not_seen() -> None:
    counter = SpanCounter()
    counter.count(request_of(1_000), came_at=10.0)
    assert counter.rate is None
    counter.count(request_of(300), came_at=11.0)
    counter.count(request_of(100), came_at=12.0)
    assert (counter.spans, counter.since_first, counter.rate) == (1_400, 400, 200.0)


def test_what_the_sdk_exports_is_counted() -> None:
    with SpanCounter() as counter:
        provider = TracerProvider(shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{counter.endpoint}/v1/traces")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        for _ in range(3):
            provider.get_tracer("test").start_span("hop").end()
        provider.shutdown()
        wait_for(counter, 3)
    assert counter.spans == 3


def test_what_is_no_trace_is_taken_unread() -> None:
    with SpanCounter() as counter:
        at = http.client.HTTPConnection(urlsplit(counter.endpoint).netloc, timeout=30)
        at.request("POST", "/v1/metrics", request_of(2))
        at.getresponse().read()
        # On the same connection, so it is handled after the other.
        at.request("POST", "/v1/traces", request_of(5))
        assert at.getresponse().status == 200
        at.close()
        wait_for(counter, 5)
    assert counter.spans == 5
