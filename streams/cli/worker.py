"""`handoff worker [STAGE…]`: run stages in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.config import load_settings
from streams.logs import configure_logs

app = typer.Typer(add_completion=False)


@app.command()
def worker(
    stages: Annotated[
        list[str] | None,
        typer.Argument(
            help="Stages of the flow, projector (job-state into Postgres), tracer (spans).",
            metavar="[STAGE]...",
            show_default="all stages, the projector and, with OTEL_*, the tracer",
        ),
    ] = None,
    app: App = DEFAULT_APP,
    slot: Annotated[
        int | None,
        typer.Option(help="Which of the stage's workers this is; one process per slot."),
    ] = None,
) -> None:
    """Run a worker until SIGTERM or SIGINT, then finish what is running and commit it.

    Exit codes: 0 stopped; 1 a fault of the program; 2 the set-up is wrong; 3 the world failed in a
    way that only a restart mends; 4 another process holds the slot.
    """
    # The one import inside a command: Faust changes global state when it is loaded.
    from streams.runtime import run_worker

    flow = load_flow(app)
    settings = load_settings() if slot is None else load_settings(slot=slot)
    configure_logs(settings)
    raise typer.Exit(run_worker(flow, stages or (), settings))
