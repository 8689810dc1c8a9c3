"""`handoff db migrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from streams.cli.output import BAD_NEWS, say
from streams.config import load_settings
from streams.postgres import place
from streams.state.migrate import ensure_database, migrate, pending

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The schema of the database.")


@app.callback()
def db() -> None:
    """The schema of the database."""


@app.command("migrate")
def migrate_command(
    plan: Annotated[
        bool, typer.Option("--plan", help="Only list what is pending; exit code 1 if any.")
    ] = False,
) -> None:
    """Create the database if it is missing and bring its schema up to date. Safe to repeat."""
    settings = load_settings()
    where = place(settings.database_url)
    if plan:
        names = pending(settings)
        say(f"{len(names)} migrations are pending at {where}.")
    else:
        if ensure_database(settings):
            say(f"Created database {where}.")
        names = migrate(settings)
        say(f"Applied {len(names)} migration{'' if len(names) == 1 else 's'} at {where}.")
    for name in names:
        typer.echo(name)
    if plan and names:
        raise typer.Exit(BAD_NEWS)
