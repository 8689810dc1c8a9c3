"""`handoff export ID`: one job in a file, to be replayed elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import BAD_NEWS, complain, say
from streams.config import load_settings
from streams.errors import BadSetup
from streams.replay.export import export_job
from streams.replay.paths import parse_path
from streams.state.queries import NoSuchJob

app = typer.Typer(add_completion=False)


@app.command()
def export(
    job_id: Annotated[str, typer.Argument(help="The job's id or a prefix that only it has.")],
    to: Annotated[Path | None, typer.Option("--to", help="The file; stdout if none.")] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            help="Hide this in payloads (data.body) or in results of effects "
            "(effects.NAME.number); may be repeated."
        ),
    ] = None,
    app_: App = DEFAULT_APP,
) -> None:
    """Write a job's records, steps and stored effects as one JSON file. Reads only.

    `handoff replay --from-file FILE` runs it without Kafka and Postgres, with the same outcome.
    Keys, headers and ids are kept as they are; with --redact, messages of errors are not. The
    results that a join gave to the job are in the file; the children that it forked are jobs of
    their own, exported by their ids (ID/0, ID/1, …).

    Exit codes: 0 written, complete; 1 no such job, or some of its records are gone (the file says
    which); 2 wrong usage or set-up; 3 Kafka or Postgres cannot be read.
    """
    hide = [parse_path(path) for path in redact or ()]
    for path, text in zip(hide, redact or (), strict=True):
        if path[0] not in ("data", "effects"):
            raise BadSetup(f"--redact {text}: a path begins with data or effects.NAME.")
    try:
        content, gone = export_job(load_settings(), load_flow(app_), job_id, hide)
    except NoSuchJob as e:
        complain(e.message)
        raise typer.Exit(BAD_NEWS) from None
    if to is None:
        sys.stdout.write(content.decode())
    else:
        try:
            to.write_bytes(content)
        except OSError as e:
            raise BadSetup(f"{to} cannot be written: {e.strerror}.") from e
        say(f"Written to {to}, {len(content):,} bytes.")
    for sentence in gone:
        complain(sentence)
    if gone:
        raise typer.Exit(BAD_NEWS)
