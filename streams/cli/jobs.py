"""`handoff jobs ls|show|tail|rerun|cancel`: jobs as the projection knows them; one of them done
again, some of them cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer
from rich.table import Table
from rich.text import Text

from schemas.state import Status
from schemas.usage import Usage, together
from streams.cli import tokens
from streams.cli.find import find
from streams.cli.jobs_cancel import cancel
from streams.cli.jobs_rerun import rerun
from streams.cli.jobs_tail import tail
from streams.cli.output import (
    Format,
    Output,
    moment,
    print_json,
    print_table,
    result_console,
    say,
    status_text,
)
from streams.cli.times import since_when
from streams.config import load_settings
from streams.postgres import connect
from streams.state.forks import Join, joins_of, waits_for_branches
from streams.state.queries import effects_of, history, list_jobs
from streams.state.runs import Run, is_called, runs_of, waits_in_run
from streams.state.views import Effect, Hop, Job

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Jobs as the projection knows them; their steps as they come.",
)


@app.command("ls")
def ls(
    status: Annotated[Status | None, typer.Option(help="Only jobs in this state.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only jobs whose last step is there.")] = None,
    flow: Annotated[str | None, typer.Option(help="Only jobs of this flow.")] = None,
    since: Annotated[str | None, typer.Option(help="Changed since: 15m, 2h, 7d or a time.")] = None,
    roots: Annotated[
        bool, typer.Option("--roots", help="Leave out the branches of forks.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    output: Output = Format.TABLE,
) -> None:
    """List jobs, the latest change first."""
    after = None if since is None else since_when(since, datetime.now(UTC))
    with connect(load_settings()) as conn:
        found = list_jobs(
            conn,
            status=status,
            stage=stage,
            flow=flow,
            since=after,
            roots=roots,
            limit=limit + 1,
        )
    jobs = found[:limit]
    if output is Format.JSON:
        print_json([asdict(job) for job in jobs])
        return
    print_table(
        ("job", "status", "flow", "stage", "step", "attempts", "updated", "error"),
        (_row(job) for job in jobs),
    )
    if len(found) > limit:
        say(f"There are more than {limit:,}; narrow the filter or raise --limit.")
    elif not jobs:
        say("No job fits. A job appears once its first step is committed and projected.")


def _row(job: Job) -> tuple[str | Text, ...]:
    return (
        job.trace_id,
        _status(job),
        job.flow,
        job.stage,
        str(job.seq),
        str(job.attempts),
        moment(job.updated_at),
        job.error.kind if job.error else "",
    )


def _status(job: Job) -> Text:
    """A wait for branches is none for a person."""
    what = " for branches" if waits_for_branches(job.status, job.to) else ""
    if waits_in_run(job.status, job.stage, job.wakes_at, job.error):
        what = " in a run"
    return Text.assemble(status_text(job.status), what)


@app.command("show")
def show(
    job_id: Annotated[str, typer.Argument(help="The job's id or a prefix that only it has.")],
    output: Output = Format.TABLE,
) -> None:
    """Show a job: its state, its forks and runs, its steps and what models cost them, its effects.
    Exit code 1 when there is no such job."""
    with connect(load_settings()) as conn:
        job = find(conn, job_id)
        steps, effects = history(conn, job.trace_id), effects_of(conn, job.trace_id)
        joins, runs = joins_of(conn, job.trace_id), runs_of(conn, job.trace_id)
        called = is_called(conn, job.trace_id)
    spent = tokens.usages(steps)
    if output is Format.JSON:
        print_json(
            {
                **asdict(job),
                "joins": [_join_json(join) for join in joins],
                "tokens": tokens.as_json(spent),
                "runs": [{"id": run.id, **asdict(run)} for run in runs],
                "steps": [asdict(step) for step in steps],
                "effects": [asdict(effect) for effect in effects],
            }
        )
        return
    total = together(spent)
    result_console().print(_facts(job, joins, runs, total, called=called))
    # Where no model was asked, nothing is said of models.
    more, cells = ((), _no_cells) if total is None else (tokens.COLUMNS, tokens.cells)
    print_table(
        ("step", "stage", "status", "to", "attempts", *more, "consumed", "worker", "updated"),
        (_step(step, cells(usage)) for step, usage in zip(steps, spent, strict=True)),
    )
    if effects:
        print_table(("effect", "status", "calls", "key"), (_effect(e) for e in effects))


app.command("tail")(tail)
app.command("rerun")(rerun)
app.command("cancel")(cancel)


def _join_json(join: Join) -> dict[str, Any]:
    return {"id": join.id, **asdict(join), "missing": join.missing}


def _facts(
    job: Job, joins: Sequence[Join], runs: Sequence[Run], spent: Usage | None, *, called: bool
) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("job", job.trace_id)
    if job.parent is not None:
        what, command = ("call of", "run") if called else ("branch of", "join")
        table.add_row(what, f"{job.parent} (handoff {command} {job.parent})")
    table.add_row("flow", job.flow)
    table.add_row("status", Text.assemble(_status(job), f" at {job.stage}"))
    for join in joins:
        told = f"{join.progress} → {join.stage}, {join.status} (handoff join {join.id})"
        table.add_row("fork", told)
    for run in runs:
        waits = f", waits for {'; '.join(run.waits)}" if run.status == "open" and run.waits else ""
        what = "run" if run.signal is None else "wait"
        table.add_row(what, f"{run.stage}: {run.status}{waits} (handoff run {run.id})")
    table.add_row("born", moment(job.born_at))
    table.add_row("updated", moment(job.updated_at))
    if job.wakes_at is not None:
        table.add_row("wakes", moment(job.wakes_at))
    if spent is not None:
        table.add_row("models", tokens.summary(spent))
    if job.error:
        table.add_row("error", Text(f"{job.error.kind}: {job.error.message}", style="red"))
    if job.data is not None:
        table.add_row("data", orjson.dumps(job.data, option=orjson.OPT_INDENT_2).decode())
    return table


def _no_cells(_: Usage | None) -> tuple[str, ...]:
    return ()


def _step(step: Hop, spent: tuple[str, ...]) -> tuple[str | Text, ...]:
    place = step.consumed
    return (
        str(step.seq),
        step.stage,
        status_text(step.status),
        ", ".join(step.to),
        str(step.attempts),
        *spent,
        f"{place.topic}[{place.partition}]@{place.offset}" if place else "",
        step.worker or "",
        moment(step.updated_at),
    )


def _effect(effect: Effect) -> tuple[str | Text, ...]:
    return effect.name, status_text(effect.status), str(effect.calls), effect.key
