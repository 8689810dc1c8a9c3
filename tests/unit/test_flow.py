"""Goal: a flow that does not fit together does not start, and says which stage is to be mended."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streams import Backoff, BadSetup, Context, Done, Emit, Flow, stage
from streams.testing import job_context


class Ask(BaseModel):
    text: str


class Answer(BaseModel):
    text: str


class LongAnswer(Answer):
    more: str = ""


@stage("ask", emits="answer")
def ask(question: Ask, job: Context) -> LongAnswer:
    return LongAnswer(text=question.text.upper())


@stage("answer")
async def answer(given: Answer, job: Context) -> Done:
    return Done(given)


def test_a_flow_whose_types_fit_is_accepted_and_knows_its_entry() -> None:
    flow = Flow("talk", (ask, answer))
    assert flow.entry is ask
    assert flow.stage("answer").is_async


def test_a_declared_stage_is_still_the_function() -> None:
    assert ask(Ask(text="why"), job_context()) == LongAnswer(text="WHY")


def test_an_emits_that_names_nothing_is_refused() -> None:
    with pytest.raises(BadSetup, match="ask emits to answer, which is no stage or sink"):
        Flow("talk", (ask,))


def test_an_output_that_the_next_stage_does_not_take_is_refused() -> None:
    @stage("ask", emits="answer")
    def wrong(question: Ask, job: Context) -> Ask:
        return question

    with pytest.raises(BadSetup, match="ask emits Ask, but answer takes Answer"):
        Flow("talk", (wrong, answer))


def test_a_plain_model_needs_exactly_one_target() -> None:
    @stage("ask", emits=("answer", "other"))
    def two(question: Ask, job: Context) -> Answer:
        return Answer(text="")

    with pytest.raises(BadSetup, match="needs exactly one"):
        Flow("talk", (two, answer), sinks=("other",))


def test_a_name_that_is_taken_twice_is_refused() -> None:
    with pytest.raises(BadSetup, match="answer is used twice"):
        Flow("talk", (ask, answer), sinks=("answer",))


@pytest.mark.parametrize("name", ["", "Ask", "a b", "a.b", "1st"])
def test_names_that_would_not_do_in_a_topic_are_refused(name: str) -> None:
    with pytest.raises(BadSetup):
        stage(name)
    with pytest.raises(BadSetup):
        Flow(name, (answer,))


def test_a_handler_without_a_model_is_refused_when_it_is_declared() -> None:
    with pytest.raises(BadSetup, match="annotated with a pydantic model"):

        @stage("ask")
        def untyped(question: dict[str, str], job: Context) -> Done:
            return Done()


def test_several_models_need_emit() -> None:
    with pytest.raises(BadSetup, match="use Emit for each"):

        @stage("ask", emits="answer")
        def several(question: Ask, job: Context) -> Ask | Answer:
            return question


def test_a_model_beside_other_outcomes_is_still_the_output() -> None:
    @stage("ask", emits="answer")
    def mixed(question: Ask, job: Context) -> Answer | Emit | Done:
        return Done()

    assert mixed.output is Answer


def test_an_unknown_stage_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadSetup, match="it has ask, answer"):
        Flow("talk", (ask, answer)).stage("act")


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_waits_grow_up_to_the_limit_and_end_after_the_last_attempt(failed: int, seed: int) -> None:
    policy = Backoff(attempts=100, first=timedelta(seconds=1), limit=timedelta(seconds=60))
    wait_s = policy.wait_seconds(failed, random.Random(seed))
    if failed >= 100:
        assert wait_s is None
    else:
        grown = min(60.0, 2.0 ** min(failed - 1, 10))
        assert wait_s is not None
        assert grown / 2 <= wait_s <= grown
