"""`handoff join ID`: the forks of a job, and the branches that their joins wait for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

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
    print_json,
    print_table,
    result_console,
    say,
)
from streams.config import load_settings
from streams.postgres import SyncConn, connect
from streams.state.forks import (
    Branch,
    Join,
    Obstacle,
    branches_of,
    joins_of,
    obstacles,
    waits_for_branches,
)
from streams.state.runs import Run, runs_of
from streams.state.views import Job
from streams.why.branch_wording import advice, next_of, rule_of, stands, state_of
from streams.why.wording import at

app = typer.Typer(add_completion=False)

#: Branches that are named unless all are asked for.
_LIMIT: Final = 20


@dataclass(frozen=True, slots=True)
class Look:
    """A join, its branches without a result, all or the first, and what all of them are at."""

    join: Join
    branches: tuple[Branch, ...]
    found: tuple[Obstacle, ...]

    @property
    def more(self) -> int:
        """Branches that are not among those named."""
        return max(0, sum(o.branches for o in self.found) - len(self.branches))

    @property
    def do(self) -> tuple[str, ...]:
        return next_of(self.join, self.branches, self.found)

    @property
    def advice(self) -> str:
        return advice(self.join, self.branches, self.found)


@app.command()
def join(
    job_id: Annotated[
        str,
        typer.Argument(
            help="The job that forked: its id or a prefix that only it has; or one join, JOB:STEP."
        ),
    ],
    every: Annotated[
        bool, typer.Option("--all", help=f"Name all that are missing, not the first {_LIMIT}.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show what a job's forks wait for: branches done, failed and missing, and where each missing
    one stands. Reads only.

    A branch is a job of its own, JOB/N: trace, why and dlq take its id. JSON names all.

    Exit codes: 0 it is shown; 1 there is no such job or join, or several begin so; 2 wrong usage or
    set-up; 3 Postgres does not answer.
    """
    prefix, colon, step = job_id.strip().partition(":")
    limit = sys.maxsize if every or output is Format.JSON else _LIMIT
    with connect(load_settings()) as conn:
        job = find(conn, prefix)
        found = [j for j in joins_of(conn, job.trace_id) if not colon or str(j.seq) == step]
        looks = [_look(conn, each, limit) for each in found]
        runs = runs_of(conn, job.trace_id)
    if not looks:
        complain(_no_join(job, step, runs))
        raise typer.Exit(BAD_NEWS)
    if output is Format.JSON:
        print_json([_json(look) for look in looks])
        return
    for look in looks:
        _show(look)


def _look(conn: SyncConn, join: Join, limit: int) -> Look:
    branches = branches_of(conn, join, min(limit, join.expected))
    return Look(join, branches, obstacles(conn, join))


def _no_join(job: Job, step: str, runs: Sequence[Run]) -> str:
    if runs and not step:
        return f"Job {job.trace_id} has no fork, but a run: handoff run {job.trace_id}."
    if step:
        return f"Job {job.trace_id} has no join of its step {step}; handoff join {job.trace_id}."
    if waits_for_branches(job.status, job.to):
        return (
            f"Job {job.trace_id} forked at {at(job.updated_at)}, and the {JOIN} agent has yet to "
            f"read that: handoff why {job.trace_id}."
        )
    branch = f" It is a branch of {job.parent}: handoff join {job.parent}." if job.parent else ""
    return f"Job {job.trace_id} has no fork.{branch}"


def _json(look: Look) -> dict[str, Any]:
    return {
        "id": look.join.id,
        **asdict(look.join),
        "missing": look.join.missing,
        "branches": [{**asdict(b), "stands": stands(b)} for b in look.branches],
        "advice": look.advice,
        "do": look.do,
    }


def _show(look: Look) -> None:
    console = result_console()
    console.print(_facts(look.join))
    if look.branches:
        rows = ((b.id, _came(b), stands(b)) for b in look.branches)
        print_table(("job", "came", "stands at"), rows)
    if look.more:
        say(f"{look.more:,} more have no result; --all names them.")
    console.print(look.advice)
    for n, command in enumerate(look.do):
        console.print(Text.assemble("next: " if n == 0 else "      ", (command, "bold")))


def _facts(each: Join) -> Table:
    table = Table.grid(padding=(0, 2))
    late = f", {each.late:,} came late" if each.late else ""
    table.add_row("join", each.id)
    table.add_row("edge", f"{each.forked_by} → {each.stage}")
    table.add_row("state", state_of(each))
    table.add_row("branches", f"{each.progress}, {each.missing:,} missing{late}")
    table.add_row("rule", rule_of(each))
    return table


def _came(branch: Branch) -> str:
    if branch.came is None:
        return ""
    return f"{branch.came.value}, late" if branch.late else branch.came.value
