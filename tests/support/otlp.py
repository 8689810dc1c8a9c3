"""An OpenTelemetry collector for tests: OTLP/HTTP on the official protobufs, in a thread."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Self

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.loop_thread import LoopThread

_PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it came, with the service and the scope that sent it."""

    service: str
    scope: str
    span: Span

    @property
    def place(self) -> tuple[str, str]:
        return self.span.trace_id.hex(), self.span.span_id.hex()

    @property
    def attributes(self) -> dict[str, str | int]:
        values = ((a.key, a.value) for a in self.span.attributes)
        return {k: v.int_value if v.HasField("int_value") else v.string_value for k, v in values}


class Receiver:
    """Takes spans at `endpoint`; a context manager.

    `spans` holds the first span of each id, `repeated` counts those that came again, `differing`
    holds those that came again and were not the same. With `takes_but_fails` it keeps what comes
    and answers 503, as a collector does whose answer is lost.
    """

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], Received] = {}
        self.repeated = 0
        self.differing: list[Received] = []
        self.takes_but_fails = False
        #: Names of the metrics that came.
        self.metrics: set[str] = set()
        self._thread = LoopThread("otlp")

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._thread.run(self._listen())
        host, port = self._server.sockets[0].getsockname()[:2]
        self.endpoint = f"http://{host}:{port}"
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.close(self._server)

    @property
    def variables(self) -> dict[str, str]:
        """What leads a process here, and makes it send what it has soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }

    def of_scope(self, scope: str) -> list[Received]:
        """The spans of one instrumentation scope; `handoff` is the tracer's."""
        return [r for r in list(self.spans.values()) if r.scope == scope]

    def hops(self) -> list[Received]:
        """The `process` spans of the tracer."""
        return [r for r in self.of_scope("handoff") if r.span.name.startswith("process ")]

    def traces(self) -> dict[str, list[Received]]:
        """The spans of each trace, parents before their children where clocks agree."""
        found: dict[str, list[Received]] = defaultdict(list)
        came = list(self.spans.values())
        for each in sorted(came, key=lambda r: r.span.start_time_unix_nano):
            found[each.place[0]].append(each)
        return found

    async def _listen(self) -> asyncio.Server:
        serving = web.Server(self._serve)
        return await asyncio.get_running_loop().create_server(serving, "127.0.0.1", 0)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.content_type != _PROTOBUF:
            return web.Response(status=415)
        # Not `request.read`, whose limit is a megabyte.
        body = await request.content.read()
        answer: ExportTraceServiceResponse | ExportMetricsServiceResponse
        if request.path == "/v1/traces":
            self._keep(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse()
        elif request.path == "/v1/metrics":
            self._keep_names(ExportMetricsServiceRequest.FromString(body))
            answer = ExportMetricsServiceResponse()
        else:
            return web.Response(status=404)
        if self.takes_but_fails:
            return web.Response(status=503)
        return web.Response(body=answer.SerializeToString(), content_type=_PROTOBUF)

    def _keep_names(self, sent: ExportMetricsServiceRequest) -> None:
        scopes = (s for r in sent.resource_metrics for s in r.scope_metrics)
        self.metrics |= {m.name for s in scopes for m in s.metrics}

    def _keep(self, sent: ExportTraceServiceRequest) -> None:
        for of_resource in sent.resource_spans:
            attributes = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    came = Received(attributes["service.name"], of_scope.scope.name, span)
                    kept = self.spans.setdefault(came.place, came)
                    if kept is not came:
                        self.repeated += 1
                        if kept != came:
                            self.differing.append(came)
