"""Goal: a committed step is one span, always the same one, under the step that caused it.

Method: states as the wire spells them, read and written as the tracer does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased

from schemas.ids import span_id
from schemas.state import Coordinates, HopTiming, JobError, JobState
from streams.tracing.sampling import HeadSampler
from streams.tracing.spans import HopRecord, SpanWriter, read_hop

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def state(seq: int = 1, job: str = JOB, **changes: Any) -> HopRecord:
    fields: dict[str, Any] = {
        "trace_id": job,
        "flow": "mail",
        "stage": "classify",
        "status": "running",
        "seq": seq,
        "attempts": 1,
        "data": {"text": "not for the collector"},
        "updated_at": datetime(2026, 1, 1, tzinfo=UTC),
        "timing": HopTiming(
            born_us=1_000, produced_us=2_000, polled_us=5_000, started_us=6_000, finished_us=9_000
        ),
        "consumed": Coordinates(topic="mail.classify", topic_id=UUID(int=1), partition=3, offset=7),
        "worker": "0.ab",
    }
    hop = read_hop(JobState(**(fields | changes)).model_dump_json(by_alias=True).encode())
    assert hop is not None
    return hop


def spans(*hops: HopRecord, sampler: HeadSampler | None = None) -> list[Span]:
    writer = SpanWriter({"service.name": "mail"}, sampler or HeadSampler(ALWAYS_ON))
    request, count = writer.request(hops)
    (of_resource,) = request.resource_spans
    (of_scope,) = of_resource.scope_spans
    assert count == len(of_scope.spans)
    return list(of_scope.spans)


def attributes(span: Span) -> dict[str, Any]:
    found = {
        a.key: getattr(a.value, a.value.WhichOneof("value") or "string_value")
        for a in span.attributes
    }
    assert len(found) == len(span.attributes), "an attribute stands twice"
    return found


def test_the_first_step_has_the_submission_before_it() -> None:
    send, process = spans(state())
    assert (send.name, send.kind) == ("send mail.classify", Span.SPAN_KIND_PRODUCER)
    assert (process.name, process.kind) == ("process mail.classify", Span.SPAN_KIND_CONSUMER)
    assert send.trace_id == process.trace_id == bytes.fromhex(JOB)
    assert send.span_id.hex() == span_id(JOB, 0)
    assert not send.parent_span_id
    assert (process.span_id.hex(), process.parent_span_id) == (span_id(JOB, 1), send.span_id)
    assert (send.start_time_unix_nano, send.end_time_unix_nano) == (1_000_000, 2_000_000)
    assert (process.start_time_unix_nano, process.end_time_unix_nano) == (5_000_000, 9_000_000)


def test_a_later_step_is_the_child_of_the_one_before() -> None:
    (span,) = spans(state(4))
    assert (span.span_id.hex(), span.parent_span_id.hex()) == (span_id(JOB, 4), span_id(JOB, 3))


def test_a_step_is_told_by_the_conventions() -> None:
    (span,) = spans(state(2, attempts=3))
    assert attributes(span) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail.classify",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "mail.classify",
        "messaging.kafka.offset": 7,
        "messaging.kafka.message.key": JOB,
        "messaging.message.id": f"{JOB}:1",
        "handoff.flow": "mail",
        "handoff.stage": "classify",
        "handoff.status": "running",
        "handoff.worker": "0.ab",
        "handoff.seq": 2,
        "handoff.attempts": 3,
        "handoff.queued_ms": 3.0,
    }


def test_a_failure_is_an_error_and_a_wait_is_none() -> None:
    error = JobError(kind="rejected", message="no such desk")
    failed, waiting = spans(
        state(2, status="failed", error=error), state(3, status="waiting", error=error)
    )
    assert (failed.status.code, failed.status.message) == (
        Status.STATUS_CODE_ERROR,
        "no such desk",
    )
    assert waiting.status.code == Status.STATUS_CODE_UNSET
    assert attributes(failed)["error.type"] == attributes(waiting)["error.type"] == "rejected"


def test_what_was_filled_in_for_one_step_is_not_in_the_next() -> None:
    error = JobError(kind="rejected", message="x")
    writer = SpanWriter({}, HeadSampler(ALWAYS_ON))
    hops = [state(2, status="failed", error=error, link=FOREIGN), state(3, status="failed")]
    first, second = writer.request(hops)[0].resource_spans[0].scope_spans[0].spans
    assert (len(first.links), len(second.links)) == (1, 0)
    assert "error.type" not in attributes(second)
    again = writer.request(hops)[0].resource_spans[0].scope_spans[0].spans
    assert list(again) == [first, second]


def test_a_foreign_span_is_linked() -> None:
    for span in spans(state(link=FOREIGN)):
        (link,) = span.links
        assert link.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
        assert link.span_id.hex() == "b7ad6b7169203331"


@given(st.text(max_size=80) | st.sampled_from([FOREIGN[:-1], "00-" + "0" * 52, FOREIGN + "-more"]))
def test_no_link_makes_the_tracer_stumble(link: str) -> None:
    for span in spans(state(link=link)):
        assert all(len(x.trace_id) == 16 and any(x.trace_id) for x in span.links)


def test_clocks_that_differ_make_no_negative_span() -> None:
    timing = HopTiming(born_us=9, produced_us=8, polled_us=7, started_us=6, finished_us=5)
    for span in spans(state(timing=timing)):
        assert span.end_time_unix_nano >= span.start_time_unix_nano
    assert attributes(spans(state(2, timing=timing))[0])["handoff.queued_ms"] == 0


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"\xff", b"[1]", b'{"traceId":"not hex"}', b"null"]
)
def test_what_is_no_state_has_no_span(value: bytes | None) -> None:
    assert read_hop(value) is None


def test_a_step_without_times_has_no_span() -> None:
    assert spans(state(timing=None), state(consumed=None)) == []


def test_the_sampler_decides_for_whole_jobs() -> None:
    half = HeadSampler(TraceIdRatioBased(0.5))
    jobs = [f"{n:016x}{n * 2**58 % 2**64:016x}" for n in range(1, 65)]
    found = spans(*(state(seq, job) for job in jobs for seq in (1, 2)), sampler=half)
    kept = {s.trace_id for s in found}
    assert 0 < len(kept) < len(jobs)
    assert len(found) == 3 * len(kept)
    assert {t.hex() for t in kept} == {j for j in jobs if half.keeps(int(j, 16))}


def test_what_models_cost_is_told_by_the_conventions() -> None:
    asked = {"operation": "chat", "requestModel": "m", "calls": 2, "inputTokens": 240}
    usage = {"models": [{**asked, "responseModel": "m-1", "outputTokens": 9}]}
    (plain,) = spans(state(2))
    (span,) = spans(state(2, usage=usage))
    assert dict(attributes(span).items() - attributes(plain).items()) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-1",
        "gen_ai.usage.input_tokens": 240,
        "gen_ai.usage.output_tokens": 9,
        "handoff.model.calls": 2,
        "handoff.model.cached": 0,
    }
    # With two models, tokens are of both and no name is told that is one's alone.
    kept = {"operation": "chat", "requestModel": "n", "cached": 1}
    (both,) = spans(state(2, usage={"models": [*usage["models"], kept]}))
    found = attributes(both)
    assert "gen_ai.request.model" not in found
    assert (found["gen_ai.usage.input_tokens"], found["handoff.model.cached"]) == (240, 1)


@given(
    st.dictionaries(st.text(max_size=5), st.integers())
    | st.fixed_dictionaries(
        {
            "models": st.lists(
                st.fixed_dictionaries(
                    {"requestModel": st.text(), "inputTokens": st.integers(-1, 2**54)}
                )
            )
        }
    )
)
def test_no_usage_makes_the_tracer_stumble(usage: dict[str, Any]) -> None:
    (span,) = spans(state(2, usage=usage))
    assert "messaging.system" in attributes(span)
