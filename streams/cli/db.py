"""`handoff db migrate|prune`: the schema, and what may go."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from streams.cli.output import BAD_NEWS, moment, say
from streams.config import Settings, load_settings
from streams.ledger.prune import Pruned, prune
from streams.postgres import open_pool, place
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


@app.command("prune")
def prune_command(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be deleted.")
    ] = False,
) -> None:
    """Delete claims, effects, joins and runs of finished jobs that no record can ask for any more.

    Workers with the projector do it once an hour. The horizon is HANDOFF_RETENTION_MS and eight
    days, the time that a segment of a topic may outlive its retention. Effects in doubt, and those
    of jobs that failed or wait, stay; so does what people decided (`handoff effects actions`).
    """
    pruned = asyncio.run(_prune(load_settings(), dry_run))
    went = "would go" if dry_run else "are gone"
    say(
        f"{pruned.claims:,} claims and {pruned.effects:,} effects, {pruned.joins:,} joins and "
        f"{pruned.arrivals:,} of their branches, {pruned.runs:,} runs and {pruned.events:,} of "
        f"their events, of jobs that ended before {moment(pruned.before)} {went}."
    )


async def _prune(settings: Settings, dry_run: bool) -> Pruned:
    async with open_pool(settings, max_size=1) as pool:
        return await prune(pool, settings, dry_run=dry_run)
