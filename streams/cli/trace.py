"""`handoff trace ID`: the waterfall of one job in the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.state import Status
from streams.cli.find import find
from streams.cli.output import (
    Format,
    Output,
    duration,
    print_json,
    result_console,
    status_text,
)
from streams.config import load_settings
from streams.postgres import connect
from streams.state.queries import effects_of, history
from streams.state.views import Effect
from streams.state.waterfall import Axis, Lane, Waterfall, took_us, waterfall

app = typer.Typer(add_completion=False)

_MAX_COLUMNS = 60
_MIN_COLUMNS = 20
#: What stands beside the bars: stage, status, figures.
_BESIDE_COLUMNS = 78

_PHASE_STYLES = {"░": "yellow", "┄": "yellow", "█": "cyan", "▒": "magenta"}


@app.command()
def trace(
    job_id: Annotated[str, typer.Argument(help="The job's id or a prefix that only it has.")],
    output: Output = Format.TABLE,
) -> None:
    """Show a job's hops: queued, working, committing; attempts and effects.

    Exit code 1 when there is no such job.
    """
    settings = load_settings()
    with connect(settings) as conn:
        trace_id = find(conn, job_id).trace_id
        story = waterfall(history(conn, trace_id), effects_of(conn, trace_id))
    if output is Format.JSON:
        print_json(as_json(story))
    else:
        show(story, result_console())


def as_json(story: Waterfall) -> dict[str, object]:
    lanes = [
        {
            **asdict(lane),
            "queued_us": lane.queued_us,
            "working_us": lane.working_us,
            "committing_us": lane.committing_us,
        }
        for lane in story.lanes
    ]
    return {
        "trace_id": story.job_id,
        "flow": story.flow,
        "status": story.status,
        "born_us": story.born_us,
        "total_us": story.total_us,
        "hops": lanes,
    }


def show(story: Waterfall, console: Console) -> None:
    """Draw on `console`, as wide as it allows."""
    columns = max(_MIN_COLUMNS, min(_MAX_COLUMNS, console.width - _BESIDE_COLUMNS))
    axis = Axis(story, columns)
    head = Text.assemble(
        ("job ", "dim"),
        story.job_id,
        ("  flow ", "dim"),
        story.flow,
        "  ",
        status_text(story.status),
        ("  total ", "dim"),
        duration(story.total_us),
    )
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, width=columns)
    grid.add_column()
    for lane in story.lanes:
        _add_lane(grid, lane, axis)
    legend = "░ queued  █ working  ▒ committing"
    if axis.compressed:
        legend += "  ┄ queued, time compressed"
    parts: list[RenderableType] = [head, grid, Text(legend, style="dim")]
    console.print(Group(*parts))


def _add_lane(grid: Table, lane: Lane, axis: Axis) -> None:
    hop = lane.hop
    figures = (
        f"queued {duration(lane.queued_us)}, working {duration(lane.working_us)}, "
        f"committing {duration(lane.committing_us)}"
    )
    if hop.attempts > 1:
        figures += f", {hop.attempts} attempts"
    label = Text.assemble((f"{hop.seq} ", "dim"), hop.stage)
    grid.add_row(label, _outcome(lane), _coloured(axis.bar(lane)), figures)
    for effect in lane.effects:
        grid.add_row(Text(f"  ↳ {effect.name}", style="dim"), "", "", _effect(effect))
    if hop.error is not None:
        grid.add_row("", "", "", Text(f"{hop.error.kind}: {hop.error.message}", style="red"))


def _outcome(lane: Lane) -> Text:
    if lane.hop.status is Status.RUNNING and lane.hop.to:
        return Text("→ " + ", ".join(lane.hop.to))
    return status_text(lane.hop.status)


def _coloured(bar: str) -> Text:
    text = Text()
    for cell in bar:
        text.append(cell, _PHASE_STYLES.get(cell, ""))
    return text


def _effect(effect: Effect) -> Text:
    calls = f"{effect.calls} call{'s' if effect.calls != 1 else ''}"
    return Text.assemble(
        "effect ", status_text(effect.status), f", {calls}, {duration(took_us(effect))}"
    )
