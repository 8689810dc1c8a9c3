"""`handoff topics plan|apply`."""

from __future__ import annotations

from typing import Annotated

import typer

from streams import topics
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import BAD_NEWS, BAD_SETUP, Format, Output, print_json, print_table, say
from streams.config import load_settings
from streams.topics import Plan

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Compare topics and group offsets, apply."
)

Reseed = Annotated[
    bool,
    typer.Option(
        "--reseed",
        help="Set groups whose offsets belong to a deleted topic to the first record.",
    ),
]


@app.command("plan")
def plan(app: App = DEFAULT_APP, output: Output = Format.TABLE) -> None:
    """Show what `apply` would do. Exit code 1 when there is something to do."""
    found = topics.plan(load_flow(app), load_settings())
    _show(found, output)
    if not found.empty:
        raise typer.Exit(BAD_NEWS)


@app.command("apply")
def apply(
    app: App = DEFAULT_APP,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reseed: Reseed = False,
    output: Output = Format.TABLE,
) -> None:
    """Create topics, correct their settings, seed group offsets. Safe to repeat.

    Exit code 1 when something is left that only a person can settle.
    """
    flow, settings = load_flow(app), load_settings()
    found = topics.plan(flow, settings)
    _show(found, output)
    if found.empty:
        return
    if not yes and not typer.confirm("Apply?", err=True):
        raise typer.Exit(BAD_SETUP)
    topics.apply(flow, settings, reseed=reseed)
    left = topics.plan(flow, settings)
    if not left.empty:
        say("Left for you: " + " ".join((*left.fixed, *(m.reason for m in left.misfits))))
        raise typer.Exit(BAD_NEWS)
    say("Applied.")


def _show(plan: Plan, output: Format) -> None:
    if output is Format.JSON:
        print_json(plan)
    elif plan.empty:
        say("Topics and group offsets are as declared.")
    else:
        print_table(("what", "where", "detail"), _rows(plan))


def _rows(plan: Plan) -> list[tuple[str, str, str]]:
    rows = [
        (
            "create",
            s.name,
            f"{s.partitions} partitions, replication {s.replication_factor}, "
            + ", ".join(f"{k}={v}" for k, v in s.config),
        )
        for s in plan.create
    ]
    rows += [("change", c.topic, f"{c.key}: {c.found} → {c.wanted}") for c in plan.change]
    rows += [
        ("seed", f"group {s.group}", f"partitions {', '.join(map(str, s.partitions)) or 'all'}")
        for s in plan.seed
    ]
    rows += [("misfit", f"group {m.group}[{m.partition}]", m.reason) for m in plan.misfits]
    return rows + [("differs", "partitions", text) for text in plan.fixed]
