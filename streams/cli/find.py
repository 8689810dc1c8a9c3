"""A job by its id or a prefix of it: not finding one is an answer, with exit code 1."""

from __future__ import annotations

import typer

from streams.cli.output import BAD_NEWS, complain
from streams.postgres import SyncConn
from streams.state.queries import NoSuchJob, find_job
from streams.state.views import Job


def find(conn: SyncConn, id_prefix: str) -> Job:
    """The job, or an end of the command with a sentence."""
    try:
        return find_job(conn, id_prefix)
    except NoSuchJob as e:
        complain(e.message)
        raise typer.Exit(BAD_NEWS) from None
