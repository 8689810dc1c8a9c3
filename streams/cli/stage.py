"""`handoff stage pause|resume STAGE`: a stage that starts no handler until it may again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from streams.cli.dlq_choice import actor
from streams.cli.jobs_cancel import By, Why
from streams.cli.output import Format, Output, print_json, say
from streams.config import Settings, load_settings
from streams.control import Kind, Order, look, stage_key
from streams.control.sender import Outgoing, send
from streams.errors import BadSetup
from streams.kafka import admin_client, topic_names

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Pause a stage, and let it go on."
)

Name = Annotated[
    str, typer.Argument(help="The stage; flow.stage where several flows have one so called.")
]


@app.command("pause")
def pause(name: Name, reason: Why = "", by: By = None, output: Output = Format.TABLE) -> None:
    """Let a stage start no handler, in any worker, until `handoff stage resume`.

    What runs ends as usual. Partitions stay where they are, records wait, and `handoff lag` and
    `handoff why` say who paused it. It survives restarts. Jobs that are cancelled are cancelled
    there all the same.
    """
    settings = load_settings()
    stage = _stage(settings, name)
    order = Order(Kind.PAUSE, stage, actor(by), datetime.now(UTC), reason)
    before = look(settings).paused.get(stage)
    send(settings, [Outgoing(settings.names.control_topic, order.key, order.value, [])])
    again = f" It was paused {before.said}." if before is not None else ""
    _tell(stage, order, f"Stage {stage} is paused.{again} It goes on with: ", output)


@app.command("resume")
def resume(name: Name, output: Output = Format.TABLE) -> None:
    """Let a paused stage go on."""
    settings = load_settings()
    stage = _stage(settings, name)
    before = look(settings).paused.get(stage)
    send(settings, [Outgoing(settings.names.control_topic, stage_key(stage), None, [])])
    said = f"it was paused {before.said}" if before is not None else "it was not paused"
    _tell(stage, None, f"Stage {stage} goes on; {said}.", output)


def _tell(stage: str, order: Order | None, said: str, output: Format) -> None:
    if output is Format.JSON:
        paused = None
        if order is not None:
            paused = {"by": order.by, "at": order.at, "reason": order.reason}
        print_json({"stage": stage, "paused": paused})
    else:
        say(said + (f"handoff stage resume {stage}" if order is not None else ""))


def _stage(settings: Settings, name: str) -> str:
    """`<flow>.<stage>` of a stage that has topics. Raises `BadSetup` for none and several."""
    names = settings.names
    with admin_client(settings) as admin:
        letters = map(names.of_dead_letters, topic_names(settings, admin))
    known = sorted(f"{x[0]}.{x[1]}" for x in letters if x is not None)
    fitting = [x for x in known if name in (x, x.partition(".")[2])]
    if len(fitting) == 1 and not fitting[0].endswith(".join"):
        return fitting[0]
    if len(fitting) > 1:
        raise BadSetup(f"Several flows have a stage {name}: {', '.join(fitting)}. Name one.")
    stages = ", ".join(x for x in known if not x.endswith(".join")) or "none"
    raise BadSetup(f"There is no stage {name} that could be paused. There are: {stages}.")
