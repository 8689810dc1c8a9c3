"""What is added up is what is told, by OTLP and in Prometheus' text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from streams.tracing.metrics import Metrics, Spec, metrics_data, metrics_wanted, prometheus_text

SENT = Spec("messaging.client.consumed.messages", "{message}", "Records.", adds=True)
TOOK = Spec("messaging.process.duration", "s", "Runs.", (0.1, 1))
LAG = Spec("handoff.lag.records", "{message}", "Lag.")
TOOK_TEXT = "messaging_process_duration_seconds"
MAIL = (("messaging.destination.name", "mail.act"),)


def filled() -> Metrics:
    metrics = Metrics()
    metrics.gauge(lambda: [(LAG, MAIL, 7)])
    metrics.add(SENT, MAIL, 2)
    metrics.add(SENT, MAIL, 3)
    metrics.add(SENT, (), 1)
    metrics.observe(TOOK, MAIL, [0.0625, 0.0625, 0.625])
    metrics.observe(TOOK, MAIL, [2.0])
    return metrics


def test_prometheus_is_told_in_its_own_spelling() -> None:
    assert prometheus_text(filled().collect()) == (
        "# HELP handoff_lag_records Lag.\n"
        "# TYPE handoff_lag_records gauge\n"
        'handoff_lag_records{messaging_destination_name="mail.act"} 7\n'
        "# HELP messaging_client_consumed_messages_total Records.\n"
        "# TYPE messaging_client_consumed_messages_total counter\n"
        "messaging_client_consumed_messages_total 1\n"
        'messaging_client_consumed_messages_total{messaging_destination_name="mail.act"} 5\n'
        "# HELP messaging_process_duration_seconds Runs.\n"
        "# TYPE messaging_process_duration_seconds histogram\n"
        f'{TOOK_TEXT}_bucket{{messaging_destination_name="mail.act",le="0.1"}} 2\n'
        f'{TOOK_TEXT}_bucket{{messaging_destination_name="mail.act",le="1"}} 3\n'
        f'{TOOK_TEXT}_bucket{{messaging_destination_name="mail.act",le="+Inf"}} 4\n'
        f'{TOOK_TEXT}_sum{{messaging_destination_name="mail.act"}} 2.75\n'
        f'{TOOK_TEXT}_count{{messaging_destination_name="mail.act"}} 4\n'
    )


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.add(SENT, (("error.type", 'a"b\\c\nd'),), 1)
    assert r'{error_type="a\"b\\c\nd"} 1' in prometheus_text(metrics.collect())


def test_the_sdks_encoder_takes_all_of_it() -> None:
    metrics = filled()
    (resource,) = encode_metrics(metrics_data(metrics.collect(), 1, 2)).resource_metrics
    found = {m.name: m for m in resource.scope_metrics[0].metrics}
    assert found[LAG.name].gauge.data_points[0].as_double == 7
    counter = found[SENT.name].sum
    assert counter.is_monotonic
    assert sorted(p.as_double for p in counter.data_points) == [1, 5]
    (histogram,) = found[TOOK.name].histogram.data_points
    assert (histogram.count, list(histogram.bucket_counts)) == (4, [2, 1, 1])
    assert list(histogram.explicit_bounds) == [0.1, 1]
    assert found[TOOK.name].unit == "s"


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_every_value_is_in_one_bucket(values: list[float]) -> None:
    metrics = Metrics()
    metrics.observe(TOOK, (), values)
    ((_, _, point),) = metrics.collect()
    assert sum(point.counts) == len(values)
    assert point.counts[0] == sum(v <= 0.1 for v in values)


def test_what_was_collected_does_not_change_any_more() -> None:
    metrics = filled()
    before = metrics.collect()
    text = prometheus_text(before)
    metrics.observe(TOOK, MAIL, [1.0])
    assert prometheus_text(before) == text


def test_the_standard_variables_say_whether_metrics_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_METRICS_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    assert not metrics_wanted()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://collector:4318/v1/metrics")
    assert metrics_wanted()
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert not metrics_wanted()
