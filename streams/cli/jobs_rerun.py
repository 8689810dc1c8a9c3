"""`handoff jobs rerun ID --from STAGE`: a job that is over, done again as a new job."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from schemas.ids import parent_of
from streams.cli.dlq_choice import DryRun, Reason, Who, actor
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import (
    BAD_NEWS,
    Format,
    Output,
    complain,
    print_json,
    print_table,
    say,
)
from streams.config import load_settings
from streams.crashpoints import arm
from streams.errors import BadSetup
from streams.postgres import connect
from streams.rerun import Keys, Plan, Refused, Rerun, Sent
from streams.state.queries import NoSuchJob

_SAID = {
    Sent.SENT: "It is sent",
    Sent.AGAIN: "It was asked for before and has no step yet; it is sent again, and done once",
    Sent.ALREADY: "It is already there; nothing was sent",
}


def rerun(
    job_id: Annotated[str, typer.Argument(help="The job's id or a prefix that only it has.")],
    stage: Annotated[str, typer.Option("--from", help="The stage to begin at.")],
    effects: Annotated[
        Keys,
        typer.Option(
            help="same: what the job did is answered from the ledger. new: it is all done again."
        ),
    ],
    label: Annotated[
        str, typer.Option(help="Tells several reruns of one job and stage apart.")
    ] = "1",
    reason: Reason = "",
    who: Who = None,
    dry_run: DryRun = False,
    app: App = DEFAULT_APP,
    output: Output = Format.TABLE,
) -> None:
    """Do a job that is over again, from a stage on, in production: as a new job with its old input.

    The original stays as it is. The new job's id is made from the original, the stage and --label,
    so the same command twice is one job. A stage that forks forks again, into children of the new
    job; one that was given the results of a join reads the same results. The rerun of a child
    reports to no join. Exit codes: 0 sent, or already there; 1 not possible; 2
    wrong usage; 3 Kafka or Postgres does not serve (run it again).
    """
    if not label.strip() or "\0" in label:
        raise BadSetup("--label is empty; leave it out, or give the rerun a name.")
    settings, flow = load_settings(), load_flow(app)
    arm(settings.crash_point)
    with connect(settings) as conn:
        call = Rerun(settings, flow, conn)
        try:
            plan = call.plan(job_id, stage, effects, label)
            sent = None if dry_run else call.send(plan, who=actor(who), why=reason)
        except (NoSuchJob, Refused) as e:
            complain(e.message)
            raise typer.Exit(BAD_NEWS) from None
    _show(plan, sent, output)
    if (parent := parent_of(plan.rerun_of)) is not None:
        say(
            f"It is a job of its own: it does not report to the join of {parent}. For a child that "
            f"failed and is waited for, there is handoff dlq redrive {plan.rerun_of}."
        )
    said = "Nothing was sent (--dry-run)" if sent is None else _SAID[sent]
    say(f"{said}. Follow it with: handoff trace {plan.job} --watch")


def _show(plan: Plan, sent: Sent | None, output: Format) -> None:
    row: dict[str, Any] = asdict(plan)
    found = row.pop("input")
    row |= {
        "input": found["source"],
        "bytes": len(found["value"]),
        "outcome": "would be sent" if sent is None else sent.value,
    }
    if output is Format.JSON:
        print_json(row)
        return
    print_table(
        ("job", "rerun of", "topic", "input", "bytes", "effects under", "outcome"),
        [
            (
                plan.job,
                plan.rerun_of,
                plan.topic,
                plan.input.source,
                f"{len(plan.input.value):,}",
                "its own keys" if plan.keys_of == plan.job else f"those of {plan.keys_of}",
                row["outcome"],
            )
        ],
    )
