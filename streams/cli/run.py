"""`handoff run ID`: the journal of a job's runs: what happened, by whom, what was asked then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from schemas.state import JOIN
from streams.cli.find import find
from streams.cli.output import (
    BAD_NEWS,
    Format,
    Output,
    complain,
    moment,
    print_json,
    print_table,
    result_console,
    status_text,
)
from streams.config import load_settings
from streams.postgres import connect
from streams.state.forks import waits_for_branches
from streams.state.runs import (
    Run,
    RunCommand,
    RunEvent,
    run_commands,
    run_events,
    runs_of,
)
from streams.state.views import Job

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Journal:
    """A run, what has happened to it and what it asked for; without a run: what came before it."""

    run: Run | None
    events: Sequence[RunEvent]
    commands: Sequence[RunCommand]


@app.command()
def run(
    job_id: Annotated[
        str,
        typer.Argument(
            help="The job's id or a prefix that only it has; or one run, JOB:STEP.",
        ),
    ],
    output: Output = Format.TABLE,
) -> None:
    """Show the journal of a job's runs: each event with its time, who sent it, and the commands and
    the step that it led to; then what the run waits for. A wait of a stage is a run, too. Reads
    only.

    A call is a job of its own, JOB/N: trace, why and dlq take its id.

    Exit codes: 0 it is shown; 1 there is no such job or run, or several begin so; 2 wrong usage or
    set-up; 3 Postgres does not answer.
    """
    prefix, colon, step = job_id.strip().partition(":")
    with connect(load_settings()) as conn:
        job = find(conn, prefix)
        runs = [r for r in runs_of(conn, job.trace_id) if not colon or str(r.seq) == step]
        events = run_events(conn, job.trace_id)
        commands = run_commands(conn, job.trace_id)
    journals = [
        Journal(r, [e for e in events if e.run == r.seq], [c for c in commands if c.run == r.seq])
        for r in runs
    ]
    early = [e for e in events if e.run == 0]
    if early and not colon:
        journals.append(Journal(None, early, ()))
    if not journals:
        complain(_no_run(job, step))
        raise typer.Exit(BAD_NEWS)
    if output is Format.JSON:
        print_json([_json(each) for each in journals])
        return
    for each in journals:
        _show(each)


def _no_run(job: Job, step: str) -> str:
    if step:
        return f"Job {job.trace_id} has no run of its step {step}; handoff run {job.trace_id}."
    if waits_for_branches(job.status, job.to):
        return (
            f"Job {job.trace_id} waits since {moment(job.updated_at)}, and the {JOIN} agent has no "
            f"run of it (yet): handoff why {job.trace_id}."
        )
    return f"Job {job.trace_id} has no run, and waits for no signal."


def _json(journal: Journal) -> dict[str, Any]:
    run = journal.run
    return {
        "id": None if run is None else run.id,
        **({} if run is None else asdict(run)),
        "events": [{**asdict(e), "by": e.by, "text": e.text} for e in journal.events],
        "asked": [{**asdict(c), "text": c.text} for c in journal.commands],
    }


def _show(journal: Journal) -> None:
    console = result_console()
    if journal.run is None:
        console.print("Kept for a run that is still to begin:")
    else:
        console.print(_facts(journal.run))
    print_table(
        ("time", "event", "step", "asked then"),
        (_row(each, journal.commands) for each in journal.events),
    )
    run = journal.run
    if run is not None and run.status == "open":
        console.print(f"It waits for: {'; '.join(run.waits) or 'nothing that it said'}.")


def _facts(run: Run) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("run", run.id)
    what = "orchestration" if run.signal is None else "wait of stage"
    table.add_row(what, run.stage)
    ended = f" since {moment(run.ended_at)}" if run.ended_at else f" since {moment(run.began_at)}"
    table.add_row("state", Text.assemble(status_text(run.status), ended))
    return table


def _row(event: RunEvent, commands: Sequence[RunCommand]) -> tuple[str, ...]:
    asked = [c.text for c in commands if c.position == event.position]
    if event.ending:
        asked.append(f"over: {event.ending}")
    return (
        moment(event.at),
        event.text,
        "" if event.step is None else str(event.step),
        "; ".join(asked),
    )
