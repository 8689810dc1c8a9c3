"""A flow's graph: declared, observed, where they differ, drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import agents
from agents.digest import flow as digest_flow
from streams import Context, Done, Emit, Flow, Fork, Joined, stage
from streams.state.drawing import mermaid
from streams.state.graph import (
    CANCELLED,
    DEAD_LETTERS,
    DONE,
    SUBMIT,
    Difference,
    Edge,
    Graph,
    Kind,
    Traffic,
    all_edges,
    declared,
    differences,
    shares,
)
from tests.support import flows, forking, refunds

README = Path(__file__).parents[3] / "README.md"

BRANCHES = Graph(
    "mail",
    ("sort", "act", "ask"),
    ("out",),
    (
        Edge(SUBMIT, "sort"),
        Edge("sort", "act"),
        Edge("sort", "ask"),
        Edge("act", "out"),
        Edge("ask", DONE),
    ),
)


def traffic(**jobs: tuple[int, int]) -> dict[Edge, Traffic]:
    """Of stage `sort`: jobs now and before, by target."""
    ends = {"done": DONE, "failed": DEAD_LETTERS, "cancelled": CANCELLED}
    return {
        Edge("sort", ends.get(target, target)): Traffic(jobs=now, jobs_before=before)
        for target, (now, before) in jobs.items()
    }


def kinds(seen: dict[Edge, Traffic]) -> list[tuple[Kind, str]]:
    return [(d.kind, d.edge.target) for d in differences(BRANCHES, seen)]


def test_a_flow_is_declared_by_its_entry_what_its_stages_emit_and_where_they_end() -> None:
    found = declared(flows.flow)
    assert (found.flow, found.stages, found.sinks) == ("run", ("take", "work", "finish"), ("done",))
    assert list(map(str, found.edges)) == [
        "(submit) → take",
        "take → work",
        "work → finish",
        "finish → done",
    ]
    mail = declared(agents.flow).edges
    assert Edge("act", DONE) in mail
    assert mail[-1] == Edge("join", "act"), "what waited for an approval"


def test_a_flow_that_forks_declares_where_branches_go_and_where_they_join() -> None:
    found = declared(forking.flow)
    assert found.stages == ("split", "part", "regather", "gather", "join")
    assert [f"{e}{' (fork)' if e in found.forks else ''}" for e in found.edges] == [
        "(submit) → split",
        "split → part (fork)",
        "split → join",
        "part → part (fork)",
        "part → join",
        "regather → join",
        "gather → done",
        "join → gather",
        "join → regather",
    ]
    chart = mermaid(found, found.edges, {})
    assert 'stage_split ==>|"forking.part"| stage_part' in chart
    assert 'stage_join -->|"forking.gather"| stage_gather' in chart


def test_an_orchestration_is_drawn_by_its_calls_and_goes_on_at_the_join_agent() -> None:
    found = declared(refunds.flow)
    marks = {**dict.fromkeys(found.calls, " (call)"), **dict.fromkeys(found.resumed, " (resumed)")}
    assert [f"{e}{marks.get(e, '')}" for e in found.edges] == [
        "(submit) → refund",
        "refund → score (call)",
        "refund → restock (call)",
        "refund → book (call)",
        "refund → undo (call)",
        "refund → join",
        "score → join",
        "restock → join",
        "book → join",
        "undo → join",
        "ask → done",
        "ask → join",
        "join → done",
        "join → ask (resumed)",
    ]
    chart = mermaid(found, found.edges, {})
    assert 'stage_refund ==>|"refunds.score"| stage_score' in chart


def test_calls_that_were_not_needed_and_stages_that_did_not_wait_are_no_dead_edges() -> None:
    graph = declared(refunds.flow)
    seen = {
        Edge(SUBMIT, "refund"): Traffic(jobs=40),
        Edge("refund", "score"): Traffic(jobs=40),
        Edge("refund", "join"): Traffic(jobs=40),
        Edge("score", "join"): Traffic(jobs=40),
        Edge("join", "done"): Traffic(jobs=40),
        Edge("join", DEAD_LETTERS): Traffic(jobs=1),
    }
    assert differences(graph, seen) == []
    assert Edge("refund", "score") not in shares(graph, seen)
    strange = {**seen, Edge("refund", "ask"): Traffic(jobs=1)}
    assert [d.kind for d in differences(graph, strange)] == [Kind.UNDECLARED]


class Note(BaseModel):
    text: str = ""


def test_branches_end_in_their_join_also_through_a_sink_and_others_where_they_are_done() -> None:
    @stage("split", emits=("part", "plain"), joins="merge")
    def split(_: Note, __: Context) -> Fork | Emit: ...

    @stage("part", emits="out")
    def part(note: Note, _: Context) -> Note: ...

    @stage("plain")
    def plain(_: Note, __: Context) -> Done: ...

    @stage("merge")
    async def merge(results: Joined[Note], _: Context) -> Done: ...

    flow = Flow("notes", (split, part, plain, merge), sinks=("out",))
    found = declared(flow)
    assert set(map(str, found.edges)) == {
        "(submit) → split",
        "split → part",
        "split → plain",
        "split → join",
        "part → out",
        "part → join",
        "plain → join",
        "plain → (done)",
        "merge → (done)",
        "join → merge",
    }
    assert found.forks == {Edge("split", "part"), Edge("split", "plain")}


def test_a_fork_into_more_children_than_before_is_no_change_and_any_stage_may_end_a_branch() -> (
    None
):
    graph = declared(forking.flow)
    seen = {
        Edge(SUBMIT, "split"): Traffic(jobs=40, jobs_before=40),
        Edge("split", "part"): Traffic(jobs=2_000, jobs_before=80),
        Edge("split", "join"): Traffic(jobs=40, jobs_before=40),
        Edge("part", "part"): Traffic(jobs=5, jobs_before=5),
        Edge("part", "join"): Traffic(jobs=2_000, jobs_before=80),
        Edge("join", "gather"): Traffic(jobs=38, jobs_before=38),
        Edge("join", "regather"): Traffic(jobs=2, jobs_before=2),
        Edge("gather", "done"): Traffic(jobs=38, jobs_before=38),
        Edge("gather", "join"): Traffic(jobs=1),
    }
    assert differences(graph, seen) == []
    share = shares(graph, seen)
    assert Edge("split", "part") not in share
    assert (share[Edge("split", "join")], share[Edge("join", "gather")]) == (1.0, 0.95)
    assert [d.kind for d in differences(BRANCHES, {Edge("sort", "join"): Traffic(jobs=1)})] == [
        Kind.UNDECLARED
    ], "a flow that does not fork has no join"
    unused = {**seen, Edge("part", "part"): Traffic()}
    assert [str(d.edge) for d in differences(graph, unused)] == ["part → part"]


def test_traffic_as_declared_differs_in_nothing_whatever_way_jobs_end() -> None:
    seen = traffic(act=(50, 55), ask=(45, 50), done=(1, 0), failed=(2, 3), cancelled=(1, 0))
    seen[Edge(SUBMIT, "sort")] = Traffic(jobs=99)
    seen[Edge("act", "out")] = Traffic(jobs=50, jobs_before=55)
    assert differences(BRANCHES, seen) == []
    assert all_edges(BRANCHES, seen) == [
        *BRANCHES.edges,
        Edge("sort", CANCELLED),
        Edge("sort", DEAD_LETTERS),
        Edge("sort", DONE),
    ]


@pytest.mark.parametrize(
    "edge",
    [
        Edge("act", "ask"),
        Edge("act", "gone"),
        Edge(SUBMIT, "act"),
        Edge("gone", DONE),
    ],
)
def test_one_job_on_an_edge_that_is_not_declared_is_named(edge: Edge) -> None:
    assert differences(BRANCHES, {edge: Traffic(jobs=1)}) == [
        Difference(Kind.UNDECLARED, edge, f"{edge} is not declared, and 1 job went that way.")
    ]
    assert differences(BRANCHES, {edge: Traffic(jobs_before=1)}) == [], "that is over"


def test_a_declared_edge_is_dead_if_its_source_worked_enough_without_it() -> None:
    assert kinds(traffic(act=(20, 20))) == [(Kind.DEAD, "ask")]
    assert kinds(traffic(act=(19, 19))) == []
    assert kinds(traffic(failed=(20, 20))) == [(Kind.DEAD, "act"), (Kind.DEAD, "ask")]
    [dead] = differences(BRANCHES, traffic(act=(1_234, 0)))
    assert dead.what == (
        "sort → ask is declared and was not used, while sort worked on 1,234 jobs."
    )


def test_a_branch_that_takes_another_share_than_before_is_named() -> None:
    changed = traffic(act=(500, 900), ask=(500, 100))
    assert kinds(changed) == [(Kind.RATIO, "act"), (Kind.RATIO, "ask")]
    assert differences(BRANCHES, changed)[1].what == (
        "sort → ask took 50.0% of 1,000 jobs, and in the window before 10.0% of 1,000 jobs."
    )
    assert shares(BRANCHES, changed)[Edge("sort", "ask")] == 0.5


def test_more_dead_letters_than_before_are_a_changed_branch() -> None:
    seen = traffic(act=(400, 500), ask=(400, 500), failed=(200, 0))
    assert (Kind.RATIO, DEAD_LETTERS) in kinds(seen)


@pytest.mark.parametrize(
    "seen",
    [
        traffic(act=(12, 8), ask=(8, 12)),  # few: that is chance
        traffic(act=(19, 900), ask=(0, 100)),  # too few now
        traffic(act=(500, 9), ask=(500, 1)),  # too few before
        traffic(act=(52_000, 50_000), ask=(48_000, 50_000)),  # certain, and small
    ],
)
def test_a_share_that_differs_by_chance_or_by_little_is_not_named(
    seen: dict[Edge, Traffic],
) -> None:
    assert kinds(seen) == []


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 4))
def test_the_same_shares_of_another_rate_are_no_change(act: int, ask: int, times: int) -> None:
    assert kinds(traffic(act=(act * times, act), ask=(ask * times, ask))) == []


def test_errors_are_a_share_of_what_was_done_with() -> None:
    assert Traffic(jobs=9, ended=8, failed=2).error_share == 0.25
    assert Traffic(jobs=9).error_share is None


def test_the_chart_dots_what_is_not_declared_and_survives_any_name() -> None:
    odd = Edge("sort", 'en"d x')
    seen = {odd: Traffic(jobs=1)}
    chart = mermaid(BRANCHES, all_edges(BRANCHES, seen), {odd: "1/s", Edge("act", "out"): "2/s"})
    lines = [line.strip() for line in chart.splitlines()]
    assert lines[0] == "flowchart LR"
    assert 'sink_out[("out")]' in lines
    assert 'stage_act -->|"mail.out<br/>2/s"| sink_out' in lines
    assert 'stage_en_d_x["en#quot;d x"]' in lines
    assert 'stage_sort -.->|"mail.en#quot;d x<br/>1/s"| stage_en_d_x' in lines
    assert lines[-2] == "stage_ask --> at_done"


@pytest.mark.parametrize(("mark", "flow"), [("flow", agents.flow), ("threads", digest_flow)])
def test_the_readme_shows_a_flow_as_its_code_declares_it(mark: str, flow: Flow) -> None:
    _, _, rest = README.read_text(encoding="utf-8").partition(f"<!-- {mark}:begin -->\n")
    shown, end, _ = rest.partition(f"<!-- {mark}:end -->")
    assert end, f"README.md has no block between the {mark} markers"
    graph = declared(flow)
    wanted = f"```mermaid\n{mermaid(graph, graph.edges, {})}\n```"
    assert shown.strip() == wanted, "paste the output of: handoff flow --declared -o mermaid"
