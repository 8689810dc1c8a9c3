"""`handoff topics plan|apply|horizon`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from streams import topics
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import (
    BAD_NEWS,
    BAD_SETUP,
    Format,
    Output,
    moment,
    print_json,
    print_table,
    result_console,
    say,
)
from streams.config import load_settings
from streams.topics import Horizon, Kept, Plan
from streams.why.wording import span

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Compare topics and group offsets, apply; how far back jobs can be replayed.",
)

Reseed = Annotated[
    bool,
    typer.Option(
        "--reseed",
        help="Set groups whose offsets belong to a deleted topic to the first record.",
    ),
]


@app.command("plan")
def plan(app: App = DEFAULT_APP, output: Output = Format.TABLE) -> None:
    """Show what `apply` would do. Exit code 1 when there is something to do."""
    found = topics.plan(load_flow(app), load_settings())
    _show(found, output)
    if not found.empty:
        raise typer.Exit(BAD_NEWS)


@app.command("apply")
def apply(
    app: App = DEFAULT_APP,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reseed: Reseed = False,
    output: Output = Format.TABLE,
) -> None:
    """Create topics, correct their settings, seed group offsets. Safe to repeat.

    Exit code 1 when something is left that only a person can settle.
    """
    flow, settings = load_flow(app), load_settings()
    found = topics.plan(flow, settings)
    _show(found, output)
    if found.empty:
        return
    if not yes and not typer.confirm("Apply?", err=True):
        raise typer.Exit(BAD_SETUP)
    topics.apply(flow, settings, reseed=reseed)
    left = topics.plan(flow, settings)
    if not left.empty:
        say("Left for you: " + " ".join((*left.fixed, *(m.reason for m in left.misfits))))
        raise typer.Exit(BAD_NEWS)
    say("Applied.")


@app.command("horizon")
def horizon(app: App = DEFAULT_APP, output: Output = Format.TABLE) -> None:
    """Show from when on the flow's jobs can be replayed whole, and which topics set that.

    Retention takes the front of a topic, compaction may take older steps from job-state. Times are
    those of the records, by the clocks of their writers.
    """
    found = topics.horizon(load_flow(app), load_settings())
    if output is Format.JSON:
        print_json(_horizon_json(found))
        return
    columns = ("topic", "cleanup", "kept for", "removed", "first record", "whole since")
    print_table(columns, (_kept_row(found, kept) for kept in found.topics))
    result_console().print(str(found))


def _kept_row(found: Horizon, kept: Kept) -> tuple[str, ...]:
    since = kept.whole_since(found.at)
    return (
        kept.topic,
        ", ".join(_cleanup(kept)),
        _age(kept.compaction_lag if kept.compacts else kept.retention),
        f"{kept.removed:,}",
        moment(kept.first_at),
        "the beginning" if since is None else moment(since),
    )


def _cleanup(kept: Kept) -> list[str]:
    return ["compact"] * kept.compacts + ["delete"] * kept.deletes


def _age(age: timedelta | None) -> str:
    return "ever" if age is None else span(age.total_seconds())


def _horizon_json(found: Horizon) -> dict[str, Any]:
    return {
        "flow": found.flow,
        "at": moment(found.at),
        "whole_since": moment(found.whole_since) or None,
        "limits": found.limits,
        "sentence": str(found),
        "topics": [_kept_json(found, kept) for kept in found.topics],
    }


def _kept_json(found: Horizon, kept: Kept) -> dict[str, Any]:
    return {
        "topic": kept.topic,
        "stage": kept.stage,
        "cleanup": _cleanup(kept),
        "retention_s": kept.retention and kept.retention.total_seconds(),
        "compaction_lag_s": kept.compaction_lag and kept.compaction_lag.total_seconds(),
        "removed": kept.removed,
        "first_at": moment(kept.first_at) or None,
        "whole_since": moment(kept.whole_since(found.at)) or None,
        "partitions": [
            {**asdict(part), "first_at": moment(part.first_at) or None} for part in kept.parts
        ],
    }


def _show(plan: Plan, output: Format) -> None:
    if output is Format.JSON:
        print_json(plan)
    elif plan.empty:
        say("Topics and group offsets are as declared.")
    else:
        print_table(("what", "where", "detail"), _rows(plan))


def _rows(plan: Plan) -> list[tuple[str, str, str]]:
    rows = [
        (
            "create",
            s.name,
            f"{s.partitions} partitions, replication {s.replication_factor}, "
            + ", ".join(f"{k}={v}" for k, v in s.config),
        )
        for s in plan.create
    ]
    rows += [("change", c.topic, f"{c.key}: {c.found} → {c.wanted}") for c in plan.change]
    rows += [
        ("seed", f"group {s.group}", f"partitions {', '.join(map(str, s.partitions)) or 'all'}")
        for s in plan.seed
    ]
    rows += [("misfit", f"group {m.group}[{m.partition}]", m.reason) for m in plan.misfits]
    return rows + [("differs", "partitions", text) for text in plan.fixed]
