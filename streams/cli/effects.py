"""`handoff effects ls`: the ledger of side effects."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from streams.cli.output import (
    BAD_NEWS,
    Format,
    Output,
    moment,
    print_json,
    print_table,
    say,
    status_text,
)
from streams.config import load_settings
from streams.ledger.queries import Effect, list_effects
from streams.postgres import connect

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The ledger of side effects.")


@app.callback()
def effects() -> None:
    """The ledger of side effects."""


@app.command("ls")
def ls(
    in_doubt: Annotated[
        bool,
        typer.Option(
            "--in-doubt", help="Only effects of which nobody knows whether they happened."
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List effects, the latest claim first.

    With --in-doubt the exit code is 1 when there are any: find out at the target, by the key, what
    happened.
    """
    with connect(load_settings()) as conn:
        found = list_effects(conn, in_doubt=in_doubt, limit=limit)
    if output is Format.JSON:
        print_json([asdict(effect) for effect in found])
    elif found:
        print_table(
            ("job", "stage", "effect", "status", "calls", "claimed", "key", "note"),
            (_row(effect) for effect in found),
        )
    else:
        say("No effect is in doubt." if in_doubt else "The ledger is empty.")
    if in_doubt and found:
        raise typer.Exit(BAD_NEWS)


def _row(effect: Effect) -> tuple[str | Text, ...]:
    return (
        effect.trace_id,
        effect.stage,
        effect.name,
        status_text(effect.status),
        str(effect.calls),
        moment(effect.claimed_at),
        effect.key,
        effect.note or "",
    )
