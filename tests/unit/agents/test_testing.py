"""`streams.testing`: a stage's test is a call and a comparison."""

from __future__ import annotations

import pytest

from streams import BadWorld, DidNotHappen, EffectNotDone, EffectParked, Happened, Unknown
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


Answer = Happened[str] | DidNotHappen | Unknown | Exception


class Target:
    """Raises what it is told to, then answers; and what it says when it is asked."""

    def __init__(self, answer: Answer, *errors: Exception) -> None:
        self.answer, self.errors = answer, list(errors)
        self.calls = self.questions = 0

    async def send(self, subject: str, *, idempotency_key: str) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "sent"

    async def look(self, subject: str, *, idempotency_key: str) -> Happened[str] | DidNotHappen:
        self.questions += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


async def send(target: Target, effects: RecordedEffects, *, idempotent: bool = False) -> str:
    job = job_context(effects=effects)
    return await job.effect(
        "mail", target.send, "hello", idempotent=idempotent, reconcile=target.look
    )


@pytest.mark.parametrize("died", [True, False])
async def test_the_target_is_asked_about_a_call_of_unknown_outcome(died: bool) -> None:
    target = Target(Happened("seen"), *(() if died else (TimeoutError(),)))
    effects = RecordedEffects(died={"mail"} if died else ())
    assert await send(target, effects) == "seen"
    assert (target.calls, target.questions) == (0 if died else 1, 1)
    assert list(effects.settled.values()) == ["seen"]


async def test_what_did_not_happen_is_called_now_or_by_the_next_run() -> None:
    target = Target(DidNotHappen())
    assert await send(target, RecordedEffects(died=("mail",))) == "sent"
    target, effects = Target(DidNotHappen(), TimeoutError()), RecordedEffects()
    with pytest.raises(TimeoutError):
        await send(target, effects)
    assert await send(target, effects) == "sent"
    assert (target.calls, target.questions) == (2, 1)


@pytest.mark.parametrize("answer", [Unknown("no log"), ValueError("no page")])
async def test_a_target_that_cannot_tell_parks_the_job(answer: Answer) -> None:
    for target, effects in (
        (Target(answer), RecordedEffects(died=("mail",))),
        (Target(answer, TimeoutError()), RecordedEffects()),
    ):
        with pytest.raises(EffectParked, match="may or may not have happened") as e:
            await send(target, effects)
        assert e.value.kind == "in_doubt"
    with pytest.raises(EffectParked, match="no reconcile function"):
        await job_context(effects=RecordedEffects(died=("mail",))).effect("mail", file, "x")
    with pytest.raises(BadWorld):
        await send(Target(BadWorld("away")), RecordedEffects(died=("mail",)))


async def test_nobody_is_asked_where_the_outcome_is_known_or_the_call_may_be_repeated() -> None:
    refused = Target(Happened("seen"), EffectNotDone("429"))
    with pytest.raises(EffectNotDone):
        await send(refused, RecordedEffects())
    lost = Target(Happened("seen"), TimeoutError())
    with pytest.raises(TimeoutError):
        await send(lost, RecordedEffects(), idempotent=True)
    assert await send(Target(Happened("-")), RecordedEffects(died=("mail",)), idempotent=True)
    assert (refused.questions, lost.questions) == (0, 0)


def test_a_context_looks_like_the_runtimes() -> None:
    job = job_context("mail", "act", trace_id=f"{TRACE_ID}/2", seq=3, attempt=2)
    assert (job.flow, job.stage, job.seq, job.attempt) == ("mail", "act", 3, 2)
    assert job.traceparent.split("-")[1] == TRACE_ID
