"""Metrics of one process: added up in batches, told by OTLP and in Prometheus' text format.

The SDK's own instruments take some 20 µs for each recorded value, which is more than all that is
done with a committed step; these take a batch of values at once. What leaves the process is the
SDK's data model and its OTLP exporter.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final

import structlog
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from streams.tracing import conventions as c
from streams.tracing.export import service_resource

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

log = structlog.get_logger(__name__)

_CUMULATIVE: Final = sdk.AggregationTemporality.CUMULATIVE
_INTERVAL_MS: Final = 60_000
_STOP_S: Final = 5.0
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Suffixes that Prometheus wants, by unit.
_SUFFIX: Final = {"s": "_seconds"}

Attributes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A metric. With `bounds` it is a histogram, if `adds` a counter, otherwise a gauge."""

    name: str
    unit: str
    help: str
    bounds: tuple[float, ...] = ()
    adds: bool = False

    @property
    def kind(self) -> str:
        return "histogram" if self.bounds else "counter" if self.adds else "gauge"


@dataclass(slots=True)
class Point:
    """What one metric says for one set of attributes. `counts`: per bucket, of a histogram."""

    value: float = 0.0
    counts: list[int] = field(default_factory=list)


Reading = tuple[Spec, Attributes, Point]
#: Asked at each collection, in the thread that collects; must not raise.
Gauge = Callable[[], Iterable[tuple[Spec, Attributes, float]]]


class Metrics:
    """Counters and histograms since the start of the process, and gauges that are asked.

    Safe to use from any thread. Nothing of it survives the process, as usual for metrics.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._points: dict[tuple[Spec, Attributes], Point] = {}
        self._gauges: list[Gauge] = []
        self.began_ns = time.time_ns()

    def gauge(self, ask: Gauge) -> None:
        self._gauges.append(ask)

    def add(self, spec: Spec, attributes: Attributes, amount: float) -> None:
        with self._lock:
            self._points.setdefault((spec, attributes), Point()).value += amount

    def observe(self, spec: Spec, attributes: Attributes, values: Iterable[float]) -> None:
        """A batch of values of a histogram."""
        bounds = spec.bounds
        with self._lock:
            point = self._points.get((spec, attributes))
            if point is None:
                point = self._points[spec, attributes] = Point(counts=[0] * (len(bounds) + 1))
            counts, total = point.counts, 0.0
            for value in values:
                counts[bisect_left(bounds, value)] += 1
                total += value
            point.value += total

    def collect(self) -> list[Reading]:
        """Everything, ordered by the metric's name."""
        asked = [
            (spec, attributes, Point(float(value)))
            for ask in self._gauges
            for spec, attributes, value in ask()
        ]
        with self._lock:
            kept = [(s, a, Point(p.value, list(p.counts))) for (s, a), p in self._points.items()]
        return sorted(kept + asked, key=lambda reading: (reading[0].name, reading[1]))


def prometheus_text(readings: Iterable[Reading]) -> str:
    """The text exposition format, 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(readings))


def _lines(readings: Iterable[Reading]) -> Iterator[str]:
    for spec, points in groupby(readings, key=lambda reading: reading[0]):
        name = _plain(spec.name) + _SUFFIX.get(spec.unit, "") + ("_total" if spec.adds else "")
        yield f"# HELP {name} {spec.help}"
        yield f"# TYPE {name} {spec.kind}"
        for _, attributes, point in points:
            if not spec.bounds:
                yield f"{name}{_labels(attributes)} {point.value:.17g}"
                continue
            limits = (*(f"{b:g}" for b in spec.bounds), "+Inf")
            for limit, count in zip(limits, accumulate(point.counts), strict=True):
                yield f"{name}_bucket{_labels((*attributes, ('le', limit)))} {count}"
            yield f"{name}_sum{_labels(attributes)} {point.value:.17g}"
            yield f"{name}_count{_labels(attributes)} {sum(point.counts)}"


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _labels(attributes: Attributes) -> str:
    if not attributes:
        return ""
    return "{" + ",".join(f'{_plain(n)}="{_escaped(v)}"' for n, v in attributes) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metrics_data(readings: Iterable[Reading], began_ns: int, now_ns: int) -> sdk.MetricsData:
    """The same for the SDK's exporters."""
    metrics = [
        sdk.Metric(spec.name, spec.help, spec.unit, _data(spec, list(points), began_ns, now_ns))
        for spec, points in groupby(readings, key=lambda reading: reading[0])
    ]
    scope = sdk.ScopeMetrics(InstrumentationScope("handoff"), metrics, c.SCHEMA_URL)
    return sdk.MetricsData([sdk.ResourceMetrics(service_resource(), [scope], c.SCHEMA_URL)])


def _data(spec: Spec, points: list[Reading], began_ns: int, now_ns: int) -> Any:
    if spec.bounds:
        found = [_histogram(spec, dict(a), p, began_ns, now_ns) for _, a, p in points]
        return sdk.Histogram(found, _CUMULATIVE)
    numbers = [sdk.NumberDataPoint(dict(a), began_ns, now_ns, p.value) for _, a, p in points]
    if spec.adds:
        return sdk.Sum(numbers, _CUMULATIVE, is_monotonic=True)
    return sdk.Gauge(numbers)


def _histogram(
    spec: Spec, attributes: Mapping[str, str], point: Point, began_ns: int, now_ns: int
) -> sdk.HistogramDataPoint:
    return sdk.HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=sum(point.counts),
        sum=point.value,
        bucket_counts=point.counts,
        explicit_bounds=spec.bounds,
        # Not kept; a value that is no number is left out of the message.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )


def metrics_wanted() -> bool:
    """Whether the environment names a collector for metrics (OpenTelemetry SDK configuration)."""
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    off = (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_METRICS_EXPORTER", "") == "none"
    )
    return not off and any(os.environ.get(n) for n in named)


class MetricsPush:
    """Sends the metrics by OTLP every `OTEL_METRIC_EXPORT_INTERVAL` ms, and once more at the end.

    A collector that is away costs a figure, never work.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ended = Event()
        self._thread = Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        exporter = OTLPMetricExporter()
        interval_s = int(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS)) / 1000
        while not self._ended.wait(interval_s):
            self._send(exporter)
        self._send(exporter)
        exporter.shutdown(timeout_millis=_STOP_S * 1000)

    def _send(self, exporter: OTLPMetricExporter) -> None:
        readings = self._metrics.collect()
        exporter.export(metrics_data(readings, self._metrics.began_ns, time.time_ns()))
