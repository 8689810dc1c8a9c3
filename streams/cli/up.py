"""`handoff up`: the developer's server, one process tree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.services import services
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import say
from streams.cli.prepare import environment, exports, prepare, worker_spec
from streams.cli.supervise import ChildSpec, StopRequest, Supervisor, stop_on_signals
from streams.config import Settings, load_settings
from streams.flow import Flow
from streams.tracing import tracing_wanted

app = typer.Typer(add_completion=False)

_TICK_S = 0.2


@app.command()
def up(
    app: App = DEFAULT_APP,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that each run all stages.")
    ] = 1,
    beside: Annotated[
        list[str] | None,
        typer.Option("--with", help="A module to run beside the workers (python -m MODULE)."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where Kafka and Postgres keep their data; thrown away if not given."),
    ] = None,
) -> None:
    """Start everything that a flow needs, and keep it running until Ctrl-C.

    Kafka and Postgres are started unless KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL name running
    ones. Database, schema, topics and offsets are made. Workers, projector and timers are
    restarted with back-off when they die. Ctrl-C stops the workers first, then the services; a
    second Ctrl-C kills the workers. The desk of the mail flow: --with infra.demo.desk.
    """
    flow = load_flow(app)
    with services(data_dir) as endpoints, stop_on_signals() as request:
        settings = load_settings(
            kafka_bootstrap_servers=endpoints.kafka_bootstrap_servers,
            database_url=endpoints.database_url,
        )
        prepare(flow, settings, say)
        _run(flow, app, settings, workers, beside or [], request)


def _run(
    flow: Flow,
    app: str,
    settings: Settings,
    workers: int,
    beside: list[str],
    request: StopRequest,
) -> None:
    env = environment(settings)
    supervisor = Supervisor(say)
    stages = list(flow.inputs)
    try:
        for slot in range(workers):
            supervisor.start(worker_spec(f"worker {slot}", app, env, *stages, slot=slot))
        supervisor.start(worker_spec("projector", app, env, *_state_agents()))
        for module in beside:
            supervisor.start(ChildSpec(module, (module,), env, serves=True))
        say(_where(settings, stages, workers))
        while not request.stop.wait(_TICK_S):
            supervisor.tick()
        say("Stopping: workers finish what is running. Ctrl-C again kills them.")
    finally:
        supervisor.stop(settings.stop_s, request.hurry)


def _state_agents() -> list[str]:
    return ["projector", "timers", *(["tracer"] if tracing_wanted() else [])]


def _where(settings: Settings, stages: list[str], workers: int) -> str:
    return (
        f"{workers} worker{'s' if workers > 1 else ''} with {', '.join(stages)}, the projector "
        f"and the timers are starting. For other terminals:\n  {exports(environment(settings))}\n"
        "Then: handoff submit FILE, handoff jobs ls, handoff doctor. Ctrl-C stops all."
    )
