"""`handoff trace ID`: the waterfall of one job in the terminal."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from schemas.ids import trace_id_of
from schemas.state import Status
from streams.cli.find import find
from streams.cli.output import (
    Format,
    Output,
    print_json,
    print_table,
    result_console,
    say,
)
from streams.cli.trace_link import trace_link
from streams.cli.trace_view import as_json, drawn, show
from streams.config import Settings, load_settings
from streams.postgres import SyncConn, connect
from streams.state.forks import Branch, branches_of, fork_stories
from streams.state.queries import effects_of, history
from streams.state.runs import run_moves
from streams.state.waterfall import Waterfall, waterfall
from streams.why.branch_wording import stands

app = typer.Typer(add_completion=False)

#: How often `--watch` asks Postgres.
_LOOK_EVERY_S = 0.5


@app.command()
def trace(
    job_id: Annotated[str, typer.Argument(help="The job's id or a prefix that only it has.")],
    output: Output = Format.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the job until it ends; then show it whole.")
    ] = False,
    children: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, help="Name so many branches of each fork, too.", show_default=False
        ),
    ] = 0,
    open_: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Print the trace's URL by HANDOFF_TRACE_URL (jaeger, tempo, grafana or a "
            "template); on a terminal open it in the browser, too.",
        ),
    ] = False,
) -> None:
    """Show a job's hops: queued, working, committing; attempts, effects, timers, dead letters; of
    a fork how its branches fared, of a run what it asked for and what came; each branch and each
    call is a job with a trace of its own.

    Reads Postgres, so it needs no collector and knows every job, sampled or not, from its first
    committed step on.

    Exit codes: 0 it is shown; 1 nobody knows the job, or several begin so; 2 wrong usage or set-up;
    3 Postgres does not answer; 130 interrupted.
    """
    settings = load_settings()
    with connect(settings) as conn:
        found = find(conn, job_id).trace_id
        if open_:
            _open(settings, found)
            return
        console = result_console()
        if watch and output is Format.TABLE:
            _watch(conn, found, console)
            return
        for story in _stories(conn, found):
            if not watch or Status(story.status).terminal:
                break
        branches = _branches(conn, story, children)
    if output is Format.JSON:
        named = [{**asdict(b), "stands": stands(b)} for b in branches]
        print_json({**as_json(story), **({"branches": named} if children else {})})
        return
    show(story, console)
    if branches:
        print_table(("branch", "stands at"), ((b.id, stands(b)) for b in branches))


def _branches(conn: SyncConn, story: Waterfall, limit: int) -> list[Branch]:
    """The first `limit` branches of each of its forks."""
    if not limit:
        return []
    joins = [lane.fork.join for lane in story.lanes if lane.fork is not None]
    return [b for join in joins for b in branches_of(conn, join, limit, whole=True)]


def _stories(conn: SyncConn, trace_id: str) -> Iterator[Waterfall]:
    """The job as it is now, again and again."""
    while True:
        now_us = time.time_ns() // 1000
        hops, effects = history(conn, trace_id), effects_of(conn, trace_id)
        forks, moves = fork_stories(conn, trace_id), run_moves(conn, trace_id)
        yield waterfall(hops, effects, now_us, forks, moves)
        time.sleep(_LOOK_EVERY_S)


def _watch(conn: SyncConn, trace_id: str, console: Console) -> None:
    """On a terminal a picture that changes, elsewhere a line on stderr for each step; at the end
    the whole."""
    steps = 0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for story in _stories(conn, trace_id):
            if console.is_terminal:
                live.update(drawn(story, console.width), refresh=True)
            else:
                for lane in story.lanes[steps:]:
                    say(f"step {lane.hop.seq}: {lane.hop.stage} {lane.hop.status.value}")
            steps = len(story.lanes)
            if Status(story.status).terminal:
                break
    show(story, console)


def _open(settings: Settings, job_id: str) -> None:
    url = trace_link(settings.trace_url, trace_id_of(job_id))
    result_console().print(url, soft_wrap=True)
    if sys.stdout.isatty():
        webbrowser.open(url)
