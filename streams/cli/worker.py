"""`handoff worker [STAGE…]`: run stages in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.config import load_settings
from streams.flow import Flow
from streams.logs import configure_logs

app = typer.Typer(add_completion=False)

PROJECTOR = "projector"
TRACER = "tracer"


@app.command()
def worker(
    stages: Annotated[
        list[str] | None,
        typer.Argument(
            help="Stages of the flow, projector (job-state into Postgres), tracer (spans).",
            metavar="[STAGE]...",
            show_default="all stages and the projector",
        ),
    ] = None,
    app: App = DEFAULT_APP,
    slot: Annotated[
        int | None,
        typer.Option(help="Which of the stage's workers this is; one process per slot."),
    ] = None,
) -> None:
    """Run a worker until SIGTERM or SIGINT, then finish what is running and commit it.

    Exit codes: 0 stopped; 2 the set-up is wrong or another process holds the slot; 3 the world
    failed in a way that only a restart mends.
    """
    # The one import inside a command: Faust reads and changes global state when it is loaded.
    from streams.runtime import run_worker  # noqa: PLC0415

    flow = load_flow(app)
    settings = load_settings() if slot is None else load_settings(slot=slot)
    configure_logs(settings)
    raise typer.Exit(run_worker(flow, chosen(flow, stages or []), settings))


def chosen(flow: Flow, stages: list[str]) -> list[str]:
    """The names to run; raises `BadSetup` for one that is neither stage nor service."""
    for name in stages:
        if name not in (PROJECTOR, TRACER):
            flow.stage(name)
    return stages or [*(s.name for s in flow.stages), PROJECTOR]
