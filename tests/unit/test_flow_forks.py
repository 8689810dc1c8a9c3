"""Goal: a flow whose forks, joins or named edges do not fit does not start, and says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

import streams
from streams import BadSetup, Context, Done, Emit, Flow, Fork, Joined, stage
from streams.edges import check_edges
from streams.joins import JoinRef


class Ask(BaseModel):
    n: int


@stage("split", emits="part", joins="merge")
def split(ask: Ask, job: Context) -> Fork:
    return Fork([ask], join="merge")


@stage("part")
def part(ask: Ask, job: Context) -> Done:
    return Done(ask)


@stage("merge")
async def merge(results: Joined[Ask], job: Context) -> Done:
    return Done()


def test_a_flow_that_forks_has_a_join_agent_and_one_that_does_not_has_none() -> None:
    forks = Flow("talk", (split, part, merge))
    assert forks.forks
    assert forks.inputs == ("split", "part", "merge", "join")
    assert not Flow("talk", (part,)).forks
    assert Flow("talk", (part,)).inputs == ("part",)
    assert (merge.input, merge.joined) == (JoinRef, Ask)


def test_a_join_that_is_no_stage_or_takes_no_results_is_refused() -> None:
    with pytest.raises(BadSetup, match="split joins into merge, which is no stage of flow talk"):
        Flow("talk", (split, part))

    @stage("merge")
    def plain(ask: Ask, job: Context) -> Done:
        return Done()

    with pytest.raises(BadSetup, match=r"that takes Joined\[…\]"):
        Flow("talk", (split, part, plain))


def test_only_a_fork_hands_to_a_join() -> None:
    @stage("part", emits="merge")
    def emits(ask: Ask, job: Context) -> Emit:
        return Emit("merge", ask)

    with pytest.raises(BadSetup, match="part emits to merge, which takes Joined"):
        Flow("talk", (split, emits, merge))


def test_children_need_a_stage_to_start_at() -> None:
    @stage("split", emits="out", joins="merge")
    def nowhere(ask: Ask, job: Context) -> Fork:
        return Fork([], join="merge")

    with pytest.raises(BadSetup, match="its `emits` must name the stages of the children"):
        Flow("talk", (nowhere, merge), sinks=("out",))


@pytest.mark.parametrize("sink", [True, False])
def test_the_agents_name_is_taken(sink: bool) -> None:
    @stage("join")
    def join(ask: Ask, job: Context) -> Done:
        return Done()

    with pytest.raises(BadSetup, match="join is the agent that joins forks; rename it"):
        Flow("talk", (part,) if sink else (part, join), sinks=("join",) if sink else ())


def test_a_join_is_read_by_an_async_handler_of_a_model() -> None:
    with pytest.raises(BadSetup, match="must be async"):

        @stage("merge")
        def sync(results: Joined[Ask], job: Context) -> Done:
            return Done()

    with pytest.raises(BadSetup, match=r"or with Joined\[…\] of one"):

        @stage("merge")
        async def untyped(results: Joined[dict[str, int]], job: Context) -> Done:
            return Done()


Hand = Emit


def emits_literal(ask: Ask, job: Context) -> Emit:
    return Emit("part", ask)


def emits_keyword(ask: Ask, job: Context) -> Emit:
    return Emit(model=ask, to="part")


def emits_attribute(ask: Ask, job: Context) -> Emit:
    return streams.Emit("part", ask)


def emits_alias(ask: Ask, job: Context) -> Emit:
    return Hand("part", ask)


async def forks_into_part(ask: Ask, job: Context) -> Fork:
    found = [Emit("part", ask) for _ in range(3)]
    return Fork(found, "merge")


class Letter:
    """Has a method of the same name."""

    def Emit(self, to: str) -> str:
        return to


LETTER = Letter()


def emits_nothing(ask: Ask, job: Context) -> Done:
    LETTER.Emit("part")
    return Done(ask)


def emits_what_it_is_told(ask: Ask, job: Context) -> Emit:
    return Emit(f"part{ask.n}", ask)


@pytest.mark.parametrize(
    "handler", [emits_literal, emits_keyword, emits_attribute, emits_alias, forks_into_part]
)
def test_an_edge_that_the_code_names_must_be_declared(handler: Callable[..., Any]) -> None:
    check_edges("ask", handler, emits=("part",), joins=("merge",), waits=())
    with pytest.raises(BadSetup) as raised:
        check_edges("ask", handler, emits=("other",), joins=("merge",), waits=())
    assert raised.value.message == (
        "The handler of stage ask says Emit to part, but the stage declares other: add it to its "
        "`emits`."
    )


def test_a_join_that_the_code_names_must_be_declared() -> None:
    for handler in (forks_into_part, split.handler):
        with pytest.raises(BadSetup, match="says Fork to merge, but the stage declares nothing"):
            check_edges("ask", handler, emits=("part",), joins=(), waits=())


def test_a_flow_with_an_undeclared_edge_does_not_start() -> None:
    @stage("ask", emits="part")
    def wrong(ask: Ask, job: Context) -> Emit:
        return Emit("elsewhere", ask) if ask.n else Emit("part", ask)

    with pytest.raises(BadSetup, match="says Emit to elsewhere, but the stage declares part"):
        Flow("talk", (wrong, part), sinks=("elsewhere",))


def test_what_the_code_does_not_name_is_left_to_the_run() -> None:
    for handler in (emits_nothing, emits_what_it_is_told):
        check_edges("ask", handler, emits=(), joins=(), waits=())
    made: dict[str, Any] = {"Emit": Emit}
    exec("def made(ask, job): return Emit('part', ask)", made)
    check_edges("ask", made["made"], emits=(), joins=(), waits=())
