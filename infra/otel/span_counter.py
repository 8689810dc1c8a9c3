"""An OTLP/HTTP receiver that answers at once and counts: how fast does an exporter export?"""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_TRACES: Final = "/v1/traces"
_PROTOBUF: Final = "application/x-protobuf"


class SpanCounter:
    """Takes uncompressed OTLP at `endpoint`; a context manager. What is no trace is taken unread.

    A request is answered before it is counted, so that an exporter does not wait for the counting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Spans received.
        self.spans = 0
        #: Those of the first request; before it came, the exporter connected, waited and made them.
        self.first = 0
        #: When the first and the last request with spans had come (monotonic seconds).
        self.first_at = self.last_at = 0.0

    def __enter__(self) -> Self:
        # Its socket listens from here on, so a request that comes before the thread runs waits.
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, name="span-counter")
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def since_first(self) -> int:
        """Spans of the requests after the first."""
        with self._lock:
            return self.spans - self.first

    @property
    def rate(self) -> float | None:
        """Spans/s from the first request to the last; None before there are two."""
        with self._lock:
            seconds = self.last_at - self.first_at
            return (self.spans - self.first) / seconds if seconds > 0 else None

    def count(self, body: bytes, came_at: float) -> None:
        """Add up one request. Raises `DecodeError` if it is none."""
        sent = ExportTraceServiceRequest.FromString(body)
        spans = sum(len(s.spans) for r in sent.resource_spans for s in r.scope_spans)
        with self._lock:
            if not self.spans:
                self.first, self.first_at = spans, came_at
            self.spans += spans
            self.last_at = max(self.last_at, came_at)


def _handler(counter: SpanCounter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came_at = time.monotonic()
            self.send_response(200)
            self.send_header("Content-Type", _PROTOBUF)
            # An empty body is an empty response message: all was taken.
            self.send_header("Content-Length", "0")
            self.end_headers()
            if self.path == _TRACES:
                counter.count(body, came_at)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a line for each request would be in the way of the report."""

    return Handler
