"""`handoff flow`: the graph that the code declares, and what goes over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from streams.cli.checks import projection_lag
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import (
    BAD_NEWS,
    duration,
    moment,
    print_json,
    print_table,
    result_console,
    say,
)
from streams.cli.times import since_when
from streams.cli.watch import Watch, watch
from streams.config import Settings, load_settings
from streams.errors import BadSetup
from streams.kafka import admin_client
from streams.postgres import connect
from streams.state.drawing import mermaid
from streams.state.graph import (
    Difference,
    Edge,
    Graph,
    Traffic,
    all_edges,
    declared,
    differences,
    shares,
)
from streams.state.traffic import Window, traffic
from streams.why import Lag, Pace, lags
from streams.why.postgres_facts import now as clock
from streams.why.wording import span

app = typer.Typer(add_completion=False)

_STYLES = {Pace.MOVING: "cyan", Pace.STUCK: "bold red", Pace.IDLE: "green"}


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    MERMAID = "mermaid"


@dataclass(frozen=True, slots=True)
class Behind:
    """The lag of a stage: over all partitions, the worst of them last."""

    records: int
    seconds: float
    pace: Pace


@dataclass(frozen=True, slots=True)
class View:
    """A flow as it is declared and, unless that is all that was asked for, as it is used."""

    graph: Graph
    window: Window | None = None
    behind: Mapping[str, Behind] = field(default_factory=dict)
    #: Offsets of job-state that the projection has yet to pass.
    unprojected: int = 0

    @property
    def traffic(self) -> Mapping[Edge, Traffic]:
        return {} if self.window is None else self.window.edges

    @property
    def edges(self) -> list[Edge]:
        return all_edges(self.graph, self.traffic)

    @property
    def differences(self) -> list[Difference]:
        return [] if self.window is None else differences(self.graph, self.traffic)


@app.command()
def flow(
    app: App = DEFAULT_APP,
    since: Annotated[
        str, typer.Option(help="Traffic since: 15m, 2h, 7d or a time; less is quicker.")
    ] = "15m",
    only_declared: Annotated[
        bool, typer.Option("--declared", help="Only what the code declares; asks no service.")
    ] = False,
    again: Watch = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="A table for people, JSON, or a Mermaid chart.")
    ] = Format.TABLE,
) -> None:
    """Show the flow's edges with rate, share, latency, errors and lag, and what is not as declared.

    Traffic is read from the projection. Latency is from the writing of a record to the commit of
    the step that consumed it; errors are the share of those steps that ended in a dead letter. Lag
    is that of the edge's target, whichever edge its records came by. Differences: an edge that is
    used and not declared; one that is declared and not used while its source worked on 20 jobs or
    more; a branch whose share differs clearly from the window of the same length before. Over an
    edge marked as a fork go the children of jobs that fork, over one marked as a call the calls of
    an orchestration: they are counted but have no share.

    Exit codes: 0 traffic is as declared (with --watch: always); 1 it is not; 2 wrong usage or
    set-up; 3 Kafka or Postgres does not answer.
    """
    graph = declared(load_flow(app))
    if only_declared:
        _show(View(graph), output)
        return
    settings = load_settings()
    if again:
        watch(lambda: partial(_show, _look(settings, graph, since), output))
        return
    view = _look(settings, graph, since)
    _show(view, output)
    if view.differences:
        raise typer.Exit(BAD_NEWS)


def _look(settings: Settings, graph: Graph, since: str) -> View:
    with connect(settings) as conn:
        until = clock(conn)
        start = since_when(since, until)
        if start >= until:
            raise BadSetup(f"--since names a time in the past; {since} is not.")
        window = traffic(conn, graph.flow, start, until)
        with admin_client(settings) as admin:
            unprojected = projection_lag(settings, admin, conn) or 0
        found = lags(conn, settings, flow=graph.flow)
    return View(graph, window, by_stage(found), unprojected)


def by_stage(found: Iterable[Lag]) -> dict[str, Behind]:
    """The lags of all partitions of each stage as one: stuck if any of them is."""
    parts: dict[str, list[Lag]] = {}
    for lag in found:
        parts.setdefault(lag.seen.agent, []).append(lag)
    return {stage: _worst(each) for stage, each in parts.items()}


def _worst(parts: list[Lag]) -> Behind:
    paces = {lag.pace for lag in parts}
    pace = next(p for p in (Pace.STUCK, Pace.MOVING, Pace.IDLE) if p in paces)
    return Behind(sum(p.seen.records for p in parts), max(p.seconds for p in parts), pace)


def _show(view: View, output: Format) -> None:
    if output is Format.JSON:
        print_json(as_json(view))
        return
    if output is Format.MERMAID:
        labels = {edge: _label(view, edge) for edge in view.edges}
        result_console().print(mermaid(view.graph, view.edges, labels), soft_wrap=True)
        return
    if view.window is None:
        print_table(("from", "to"), ((e.source, _target(view, e)) for e in view.edges))
        return
    _show_traffic(view, view.window)


def _show_traffic(view: View, window: Window) -> None:
    columns = ("from", "to", "jobs", "per s", "share", "p50", "p95", "errors", "behind", "state")
    print_table(columns, (_row(view, window, edge) for edge in view.edges))
    for each in view.differences:
        result_console().print(Text.assemble((f"{each.kind.value}: ", "bold red"), each.what))
    if not any(t.jobs for t in window.edges.values()):
        say(f"Nothing of flow {view.graph.flow} was projected since {moment(window.since)}.")
    if window.sample > 1:
        say(f"Latencies and errors are those of one job in {window.sample}.")
    if view.unprojected:
        say(f"{view.unprojected:,} records of job-state are not projected yet, and not in this.")


def as_json(view: View) -> dict[str, Any]:
    share, window = shares(view.graph, view.traffic), view.window
    seen: dict[str, Any] = {}
    if window is not None:
        seen = {
            "since": moment(window.since),
            "until": moment(window.until),
            "sample": window.sample,
            "unprojected": view.unprojected,
        }
    return {
        "flow": view.graph.flow,
        "stages": view.graph.stages,
        "sinks": view.graph.sinks,
        **seen,
        "edges": [_edge_json(view, edge, share.get(edge)) for edge in view.edges],
        "differences": [
            {"kind": d.kind.value, **d.edge._asdict(), "what": d.what} for d in view.differences
        ],
    }


def _edge_json(view: View, edge: Edge, share: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        **edge._asdict(),
        "declared": edge in view.graph.edges,
        "fork": edge in view.graph.forks,
        "call": edge in view.graph.calls,
    }
    if view.window is None:
        return found
    seen = view.traffic.get(edge, Traffic())
    behind = view.behind.get(edge.target)
    return {
        **found,
        **asdict(seen),
        "per_s": seen.jobs / view.window.seconds,
        "share": share,
        "error_share": seen.error_share,
        "behind": None if behind is None else {**asdict(behind), "pace": behind.pace.value},
    }


def _row(view: View, window: Window, edge: Edge) -> tuple[str | Text, ...]:
    seen = view.traffic.get(edge, Traffic())
    behind = view.behind.get(edge.target)
    share = shares(view.graph, view.traffic).get(edge)
    return (
        edge.source,
        _target(view, edge),
        f"{seen.jobs:,}",
        f"{seen.jobs / window.seconds:.3g}",
        "" if share is None else f"{share:.1%}",
        *(("", "") if seen.p50_s is None else _latencies(seen)),
        "" if seen.error_share is None else f"{seen.error_share:.1%}",
        "" if behind is None or not behind.records else _amount(behind),
        "" if behind is None else Text(behind.pace.value, style=_STYLES[behind.pace]),
    )


def _target(view: View, edge: Edge) -> str:
    if edge in view.graph.calls:
        return f"{edge.target} (call)"
    return f"{edge.target} (fork)" if edge in view.graph.forks else edge.target


def _latencies(seen: Traffic) -> tuple[str, str]:
    p50_s, p95_s = seen.p50_s or 0.0, seen.p95_s or 0.0
    return duration(p50_s * 1e6), duration(p95_s * 1e6)


def _amount(behind: Behind) -> str:
    return f"{behind.records:,} ({span(round(behind.seconds, 1))})"


def _label(view: View, edge: Edge) -> str:
    """What a chart says of an edge's traffic; nothing if only the declaration was asked for."""
    if view.window is None:
        return ""
    seen = view.traffic.get(edge, Traffic())
    parts = [f"{seen.jobs / view.window.seconds:.3g}/s"]
    if seen.p95_s is not None:
        parts.append(f"p95 {duration(seen.p95_s * 1e6)}")
    if seen.failed:
        parts.append(f"{seen.error_share:.1%} failed")
    behind = view.behind.get(edge.target)
    if behind is not None and behind.records:
        parts.append(f"{behind.records:,} behind")
    return ", ".join(parts)
