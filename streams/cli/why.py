"""`handoff why ID`: why does it not move, and what is to be done?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from streams.cli.output import (
    BAD_NEWS,
    Format,
    Output,
    complain,
    print_json,
    result_console,
    status_text,
)
from streams.config import load_settings
from streams.postgres import connect
from streams.state.queries import NoSuchJob
from streams.why import Answer, Code, explain, gather

app = typer.Typer(add_completion=False)


@app.command()
def why(
    job_id: Annotated[str, typer.Argument(help="The job's id or a prefix that only it has.")],
    output: Output = Format.TABLE,
) -> None:
    """Say why a job does not move, and the command to run next. Reads only.

    Answers, the first that holds: done, cancelled; no_worker, in_work, paused, backoff, lag (its
    record lies in a topic); branches (it forked, and waits for them); run (an orchestration, or a
    wait: for calls, signals, times); in_doubt, dead_letter, failed
    (it waits for a person); timer; lost; not_there.

    Exit codes: 0 there is an answer; 1 nobody knows the job, or several begin so; 2 wrong usage or
    set-up; 3 Kafka or Postgres does not answer.
    """
    settings = load_settings()
    with connect(settings) as conn:
        try:
            facts = gather(conn, settings, job_id)
        except NoSuchJob as e:
            complain(e.message)
            raise typer.Exit(BAD_NEWS) from None
    answer = explain(facts, facts.now)
    if output is Format.JSON:
        print_json(_json(answer))
    else:
        _show(answer)
    if answer.code is Code.NOT_THERE:
        raise typer.Exit(BAD_NEWS)


def _json(answer: Answer) -> dict[str, object]:
    found = asdict(answer)
    return {"answer": found.pop("code"), **found}


def _show(answer: Answer) -> None:
    console = result_console()
    where = f" at {answer.stage}" if answer.stage else ""
    flow = f"  flow {answer.flow}" if answer.flow else ""
    code = status_text(answer.code.value)
    console.print(Text.assemble("job ", answer.job, flow, "  ", code, where))
    console.print(answer.why)
    if answer.also:
        console.print(answer.also)
    for n, command in enumerate(answer.do):
        console.print(Text.assemble("next: " if n == 0 else "      ", (command, "bold")))
