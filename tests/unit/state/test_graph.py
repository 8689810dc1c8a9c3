"""A flow's graph: declared, observed, where they differ, drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agents
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
from tests.support import flows

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
    assert declared(agents.flow).edges[-1] == Edge("act", DONE)


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
    assert shares(changed)[Edge("sort", "ask")] == 0.5


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


def test_the_readme_shows_the_mail_flow_as_its_code_declares_it() -> None:
    _, _, rest = README.read_text(encoding="utf-8").partition("<!-- flow:begin -->\n")
    shown, end, _ = rest.partition("<!-- flow:end -->")
    assert end, "README.md has no block between the flow markers"
    graph = declared(agents.flow)
    wanted = f"```mermaid\n{mermaid(graph, graph.edges, {})}\n```"
    assert shown.strip() == wanted, "paste the output of: handoff flow --declared -o mermaid"
