"""`streams.testing`: a stage's test is a call and a comparison."""

from __future__ import annotations

import pytest

from streams import BadWorld
from streams.testing import TRACE_ID, RecordedEffects, job_context


async def file(text: str, *, idempotency_key: str) -> str:
    return f"{text} under {idempotency_key}"


async def test_an_effect_runs_with_its_key_once() -> None:
    effects = RecordedEffects()
    job = job_context("mail", "act", effects=effects)
    first = await job.effect("ticket", file, "hello")
    assert first == f"hello under {TRACE_ID}:act:0:ticket"
    assert await job.effect("ticket", file, "other") == first
    assert [call.args for call in effects.calls] == [("hello",), ("other",)]


async def test_named_results_stand_in_for_the_call() -> None:
    effects = RecordedEffects(results={"ticket": "T-1", "reply": BadWorld("Away.")})
    job = job_context(effects=effects)
    assert await job.effect("ticket", file, "x") == "T-1"
    with pytest.raises(BadWorld, match="Away"):
        await job.effect("reply", file, "x")
    assert list(effects.settled) == [job.effect_key("ticket")]


async def test_a_failed_effect_runs_again() -> None:
    calls: list[str] = []

    async def flaky(*, idempotency_key: str) -> int:
        calls.append(idempotency_key)
        if len(calls) == 1:
            raise BadWorld("Not now.")
        return len(calls)

    job = job_context()
    with pytest.raises(BadWorld):
        await job.effect("flaky", flaky)
    assert await job.effect("flaky", flaky) == 2
    assert calls == [job.effect_key("flaky")] * 2


def test_a_context_looks_like_the_runtimes() -> None:
    job = job_context("mail", "act", trace_id=f"{TRACE_ID}/2", seq=3, attempt=2)
    assert (job.flow, job.stage, job.seq, job.attempt) == ("mail", "act", 3, 2)
    assert job.traceparent.split("-")[1] == TRACE_ID
