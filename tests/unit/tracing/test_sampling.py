"""The standard variables decide, once for a trace, the same in every process."""

from __future__ import annotations

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from streams.tracing.sampling import sampler_from_environment

LOW, HIGH = 1, 2**64 - 1


@pytest.mark.parametrize(
    ("name", "argument", "always", "never"),
    [
        (None, None, True, False),
        ("always_on", None, True, False),
        ("always_off", None, False, True),
        ("parentbased_always_on", None, True, False),
        ("parentbased_always_off", None, False, True),
        ("traceidratio", "0.5", False, False),
        ("parentbased_traceidratio", "0.5", False, False),
    ],
)
def test_the_standard_variables_are_obeyed(
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    argument: str | None,
    always: bool,
    never: bool,
) -> None:
    for variable, value in (("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    sampler = sampler_from_environment()
    assert (sampler.always, sampler.never) == (always, never)
    assert (sampler.keeps(LOW), sampler.keeps(HIGH)) == (not never, always)


def test_the_span_that_is_current_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    sampler = sampler_from_environment()
    for flags in (TraceFlags.DEFAULT, TraceFlags.SAMPLED):
        current = NonRecordingSpan(
            SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(flags))
        )
        with use_span(current):
            assert (sampler.keeps(LOW), sampler.keeps(HIGH)) == (True, False)
