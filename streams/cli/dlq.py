"""`handoff dlq ls|show|edit|redrive|discard`: dead letters, and what to do about them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer

from streams.cli.dlq_choice import LetterId, only
from streams.cli.dlq_edit import edit
from streams.cli.dlq_redrive import discard, redrive
from streams.cli.dlq_view import (
    letter_json,
    say_what_is_gone,
    show_clusters,
    show_letter,
    show_letters,
)
from streams.cli.output import Format, Output, print_json, say
from streams.cli.times import since_when
from streams.config import load_settings
from streams.deadletter.actions import Settled, actions_on
from streams.deadletter.choice import Choice
from streams.deadletter.clusters import Clusters
from streams.deadletter.letters import Letter
from streams.deadletter.reader import Reader
from streams.postgres import SyncConn, connect
from streams.state.queries import NoSuchJob, find_job
from streams.state.views import Job

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Dead letters: list, show, edit, redrive, discard.",
)


@app.command("ls")
def ls(
    flow: Annotated[str | None, typer.Option(help="Only letters of this flow.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only letters of this stage.")] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also those that were redriven or discarded.")
    ] = False,
    since: Annotated[str | None, typer.Option(help="Written since: 15m, 2h, 7d or a time.")] = None,
    letters: Annotated[bool, typer.Option("--letters", help="Each letter, not clusters.")] = False,
    topic: Annotated[
        list[str] | None, typer.Option(help="Read this topic instead: any system's dead letters.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List open dead letters, by stage and error: ids, numbers, paths and quotes do not count.

    The key of a cluster is what `redrive` and `discard` take.
    """
    settings = load_settings()
    reader = Reader(settings)
    after = None if since is None else since_when(since, datetime.now(UTC))
    since_ms = None if after is None else int(after.timestamp() * 1000)
    choice = Choice(flow=flow, stage=stage, since_ms=since_ms)
    spans = reader.spans(topic or reader.topics(flow, stage), since_ms)
    # What was done is asked only where it matters, so that --all works without Postgres.
    with nullcontext() if all_ else connect(settings) as conn:
        settled: Container[Letter] = () if conn is None else Settled(conn)
        found = (x for x in reader.read(spans) if choice.takes(x) and x not in settled)
        empty = _list_letters(found, limit, output) if letters else _list_clusters(found, output)
    say_what_is_gone(spans)
    if empty:
        say("No dead letter fits." if all_ else "No dead letter is open.")


def _list_clusters(found: Iterator[Letter], output: Format) -> bool:
    clusters = Clusters()
    for letter in found:
        clusters.add(letter)
    largest = clusters.largest_first()
    if output is Format.JSON:
        print_json([asdict(cluster) for cluster in largest])
    elif largest:
        show_clusters(largest)
    return not largest


def _list_letters(found: Iterator[Letter], limit: int, output: Format) -> bool:
    listed = list(islice(found, limit))
    more = next(found, None)
    if output is Format.JSON:
        print_json([letter_json(letter) for letter in listed])
    elif listed:
        show_letters(listed)
    if more is not None:
        say(f"There are more than {limit:,}; narrow the choice or raise --limit.")
    return not listed


@app.command("show")
def show(
    letter_id: LetterId,
    output: Output = Format.TABLE,
) -> None:
    """Show a dead letter whole: where it failed and why, key, headers, payload, what was done.

    A job that failed several times has several letters; the last one is shown, the others are
    named. Exit code 1 when there is none.
    """
    settings = load_settings()
    letter, others = only(Reader(settings), letter_id)
    with connect(settings) as conn:
        acted, job = actions_on(conn, letter), _job_of(conn, letter)
    if output is Format.JSON:
        state = None if job is None else asdict(job)
        print_json(
            {**letter_json(letter), "actions": [asdict(a) for a in acted], "job_state": state}
        )
        return
    show_letter(letter, job, acted)
    if others:
        say("Earlier letters of this job: " + ", ".join(str(x.place) for x in others))


def _job_of(conn: SyncConn, letter: Letter) -> Job | None:
    try:
        return find_job(conn, letter.job) if letter.job else None
    except NoSuchJob:
        return None


app.command("edit")(edit)
app.command("redrive")(redrive)
app.command("discard")(discard)
