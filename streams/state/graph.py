"""A flow as a graph: as its code declares it, as its traffic shows it, where they differ. Pure.

Nodes are the flow's stages and sinks by name, and where jobs come from and end: those are in
parentheses, which no stage's name can hold. In a flow that forks, orchestrates or waits the join
agent is a node, too: forks tell it what to expect, runs and waits begin there, branches and calls
that are over come there, and it hands on to where forks join, runs end and what waited goes on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from schemas.state import JOIN
from streams.flow import Flow, Stage

SUBMIT: Final = "(submit)"
DONE: Final = "(done)"
DEAD_LETTERS: Final = "(dead letters)"
CANCELLED: Final = "(cancelled)"
#: A stage may end a job in each of these ways without declaring it.
ENDS: Final = frozenset({DONE, DEAD_LETTERS, CANCELLED})

#: A source that handed over fewer jobs than these says nothing of its branches.
MIN_JOBS: Final = 20
#: A branch has changed if its share differs by so much, and by so many standard errors.
_SHARE: Final = 0.05
_DEVIATIONS: Final = 4.0


class Edge(NamedTuple):
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"


@dataclass(frozen=True, slots=True)
class Graph:
    """`edges` as declared, in the order of the stages; `forks` are those of them over which the
    children of forks go, perhaps besides jobs that are handed on, and `calls` those over which the
    calls of orchestrations go. Over `resumed` come jobs that have waited."""

    flow: str
    stages: tuple[str, ...]
    sinks: tuple[str, ...]
    edges: tuple[Edge, ...]
    forks: frozenset[Edge] = frozenset()
    calls: frozenset[Edge] = frozenset()
    resumed: frozenset[Edge] = frozenset()

    @property
    def children(self) -> frozenset[Edge]:
        """Edges over which jobs' children go, as many as a job needs: that is no share of it."""
        return self.forks | self.calls


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went over one edge in a window of time.

    `jobs` were handed over, `jobs_before` in a window of the same length before it. Of those that
    the edge's target was done with, `ended` (in a sample of jobs, if they are many), so many
    `failed`; `p50_s` and `p95_s` are the times
    from the writing of the record to the commit of the step that consumed it, waits for timers not
    included; None where there are none, as at the ends.
    """

    jobs: int = 0
    jobs_before: int = 0
    ended: int = 0
    failed: int = 0
    p50_s: float | None = None
    p95_s: float | None = None

    @property
    def error_share(self) -> float | None:
        return self.failed / self.ended if self.ended else None


class Kind(StrEnum):
    """What `-o json` calls a difference."""

    #: Used, and the code does not declare it.
    UNDECLARED = "undeclared"
    #: Declared, and not used although its source worked.
    DEAD = "dead"
    #: Its share of what its source hands over is another than in the window before.
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class Difference:
    kind: Kind
    edge: Edge
    what: str


def declared(flow: Flow) -> Graph:
    """The graph of `flow` by its code. A stage that emits to nothing is where jobs are done, or
    branches of a fork go to their join. What a run ends in, the join agent hands on."""
    edges = [Edge(SUBMIT, flow.entry.name)]
    forks: list[Edge] = []
    whole, branches = _reached(flow)
    for stage in flow.stages:
        run = stage.orchestrates is not None
        edges += [Edge(stage.name, target) for target in (stage.calls if run else stage.emits)]
        if stage.joins:
            forks += [Edge(stage.name, to) for to in stage.emits if to not in flow.sinks]
        ends = not stage.emits or any(to in flow.sinks for to in stage.emits)
        if stage.joins or stage.waits or run or (ends and stage.name in branches):
            edges.append(Edge(stage.name, JOIN))
        if not run and not stage.emits and (stage.name in whole or stage.name not in branches):
            edges.append(Edge(stage.name, DONE))
    edges += [Edge(JOIN, to) for stage in flow.stages for to in _led_to(stage)]
    return Graph(
        flow.name,
        flow.inputs,
        flow.sinks,
        tuple(dict.fromkeys(edges)),
        frozenset(forks),
        frozenset(Edge(s.name, to) for s in flow.stages for to in s.calls),
        frozenset(Edge(JOIN, s.name) for s in flow.stages if s.waits),
    )


def _led_to(stage: Stage[Any, Any]) -> Iterator[str]:
    """Where the join agent hands on what `stage` left to it."""
    yield from stage.joins
    if stage.orchestrates is not None:
        yield from stage.emits or (DONE,)
    if stage.waits:
        yield stage.name


def _reached(flow: Flow) -> tuple[set[str], set[str]]:
    """Stages that jobs come to which nobody forked, and those that branches come to.

    A job goes on where its fork joins; its children are branches wherever they go. A stage that
    forks and names several stages may hand the job itself to any of them instead; if it names one,
    that is where the children go.
    """
    by_name = {stage.name: stage for stage in flow.stages}
    seen: tuple[set[str], set[str]] = (set(), set())
    todo = [(flow.entry.name, False)]
    while todo:
        name, is_branch = todo.pop()
        if name in seen[is_branch]:
            continue
        seen[is_branch].add(name)
        stage = by_name[name]
        todo += [(to, is_branch) for to in stage.joins]
        todo += [(to, True) for to in stage.calls]
        targets = [to for to in stage.emits if to in by_name]
        if stage.joins:
            todo += [(to, True) for to in targets]
        if not stage.joins or len(targets) > 1:
            todo += [(to, is_branch) for to in targets]
    return seen


def all_edges(graph: Graph, traffic: Mapping[Edge, Traffic]) -> list[Edge]:
    """The declared edges, then the others that were used in the window, by name."""
    used = {edge for edge, t in traffic.items() if t.jobs}
    return [*graph.edges, *sorted(used - set(graph.edges))]


def shares(graph: Graph, traffic: Mapping[Edge, Traffic]) -> dict[Edge, float]:
    """Of what each edge's source handed over, the share that went this way; children have none."""
    totals = _totals(traffic, graph.children)
    return {
        e: t.jobs / totals[e.source][0]
        for e, t in traffic.items()
        if e not in graph.children and totals[e.source][0]
    }


def differences(graph: Graph, traffic: Mapping[Edge, Traffic]) -> list[Difference]:
    """Where the traffic is not as declared, or not as it was; at most one per edge."""
    found = (_difference(graph, traffic, edge) for edge in [*graph.edges, *sorted(traffic)])
    return list(dict.fromkeys(each for each in found if each is not None))


def _difference(graph: Graph, traffic: Mapping[Edge, Traffic], edge: Edge) -> Difference | None:
    seen = traffic.get(edge, Traffic())
    known = edge in graph.edges
    if seen.jobs and not known and not _may_be(graph, edge):
        what = f"{edge} is not declared, and {_jobs(seen.jobs)} went that way."
        return Difference(Kind.UNDECLARED, edge, what)
    if edge.source == SUBMIT:
        return None
    now, before = _totals(traffic, graph.children).get(edge.source, (0, 0))
    # A call may be a compensation, and a stage that may wait need not.
    always = known and edge not in graph.calls and edge not in graph.resumed
    if always and edge.target not in (*ENDS, JOIN) and not seen.jobs and now >= MIN_JOBS:
        what = f"{edge} is declared and was not used, while {edge.source} worked on {_jobs(now)}."
        return Difference(Kind.DEAD, edge, what)
    # A job forks into as many children as it needs: that is no share of anything.
    if edge in graph.children:
        return None
    if min(now, before) >= MIN_JOBS and _changed(seen.jobs, now, seen.jobs_before, before):
        what = (
            f"{edge} took {seen.jobs / now:.1%} of {_jobs(now)}, and in the window before "
            f"{seen.jobs_before / before:.1%} of {_jobs(before)}."
        )
        return Difference(Kind.RATIO, edge, what)
    return None


def _may_be(graph: Graph, edge: Edge) -> bool:
    """Whether a stage may hand over that way without declaring it: each may end a job or a branch
    of a fork."""
    if edge.source not in graph.stages:
        return False
    return edge.target in ENDS or (edge.target == JOIN and JOIN in graph.stages)


def _totals(
    traffic: Mapping[Edge, Traffic], forks: Collection[Edge] = ()
) -> dict[str, tuple[int, int]]:
    """By source: jobs handed over, and those in the window before, without children of `forks`."""
    totals: dict[str, tuple[int, int]] = {}
    for edge, seen in traffic.items():
        if edge in forks:
            continue
        now, before = totals.get(edge.source, (0, 0))
        totals[edge.source] = now + seen.jobs, before + seen.jobs_before
    return totals


def _changed(jobs: int, of: int, jobs_before: int, of_before: int) -> bool:
    """Whether two shares differ by more than chance (a two-proportion z-test) and by enough."""
    difference = abs(jobs / of - jobs_before / of_before)
    pooled = (jobs + jobs_before) / (of + of_before)
    error = math.sqrt(pooled * (1 - pooled) * (1 / of + 1 / of_before))
    return difference >= _SHARE and difference >= _DEVIATIONS * error


def _jobs(n: int) -> str:
    return "1 job" if n == 1 else f"{n:,} jobs"
