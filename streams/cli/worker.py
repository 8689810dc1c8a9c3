"""`handoff worker [STAGE…]`: run stages in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.worker_processes import run, specs
from streams.config import load_settings
from streams.logs import configure_logs
from streams.tracing import stamp_ids

app = typer.Typer(add_completion=False)


@app.command()
def worker(
    stages: Annotated[
        list[str] | None,
        typer.Argument(
            help="Stages of the flow, join (the branches of its forks), projector (job-state into "
            "Postgres), timers (long waits), tracer (spans).",
            metavar="[STAGE]...",
            show_default="all stages, join if the flow forks, projector, timers and, with OTEL_*, "
            "the tracer",
        ),
    ] = None,
    app: App = DEFAULT_APP,
    slot: Annotated[
        int | None,
        typer.Option(help="Which of the stage's workers this is; one process per slot."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="Run so many workers, one per process, and restart those that die. They take the "
            "slots from SLOT * N on, and health ports in a row.",
        ),
    ] = 1,
    health_port: Annotated[
        int | None,
        typer.Option(
            help="Serve /livez, /readyz, /metrics at this port (HANDOFF_HEALTH_PORT; 0 is off).",
            show_default="HANDOFF_HEALTH_PORT, or off",
        ),
    ] = None,
) -> None:
    """Run a worker until SIGTERM or SIGINT, then finish what is running and commit it.

    Exit codes: 0 stopped as asked. 1 a fault of the program, or the event loop hung for
    HANDOFF_WATCHDOG_S (the log shows where). 2 the set-up is wrong: a topic, the schema, a setting
    or a permission. 3 Kafka or Postgres did not serve at the start; once started, a worker waits
    for them instead. 4 another process holds the slot. A handler that kills the process gives the
    code or signal of its own. With --processes only 2 and 4 end the whole. Restart it in any case,
    after 2 and 4 once that is mended: a record that kills is dead-lettered after
    HANDOFF_MAX_DELIVERIES.
    """
    flow = load_flow(app)
    told = {"slot": slot, "health_port": health_port}
    settings = load_settings(**{name: value for name, value in told.items() if value is not None})
    configure_logs(settings, stamp_ids)
    if processes > 1:
        raise typer.Exit(run(specs(processes, stages or (), app, settings), settings))
    # The one import inside a command: Faust changes global state when it is loaded.
    from streams.runtime import run_worker

    raise typer.Exit(run_worker(flow, stages or (), settings))
