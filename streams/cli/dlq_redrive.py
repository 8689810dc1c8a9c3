"""`handoff dlq redrive|discard`: what is done about many letters at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from uuid import uuid4

import typer

from streams.cli.dlq_choice import (
    Cluster,
    DryRun,
    Filter,
    Ids,
    Picked,
    Reason,
    Who,
    Yes,
    actor,
    pick,
)
from streams.cli.dlq_view import print_report, progress, show_report
from streams.cli.output import (
    BAD_NEWS,
    BAD_SETUP,
    Format,
    Output,
    complain,
    print_json,
    print_table,
    say,
)
from streams.config import Settings, load_settings
from streams.crashpoints import arm
from streams.deadletter.actions import Action, Deed, record_discarded
from streams.deadletter.letters import Letter
from streams.deadletter.plan import Refused, plan_redrive
from streams.deadletter.reader import Reader
from streams.deadletter.redriving import CHUNK_LETTERS, Canary, Redrive, Report, chunks
from streams.errors import BadSetup, HandoffError
from streams.postgres import SyncConn, connect

Rate = Annotated[
    str | None, typer.Option("--rate", help="At most so many: 50/s, 20/m; a number is per second.")
]

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?:/([smh]))?")
_SECONDS = {"s": 1, "m": 60, "h": 3_600}


def redrive(
    ids: Ids = None,
    cluster: Cluster = None,
    filter_: Filter = None,
    canary: Annotated[
        int | None,
        typer.Option(min=1, help="First so many; go on only if none of them fails again."),
    ] = None,
    canary_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for the canary's next steps.")
    ] = 300.0,
    rate: Rate = None,
    reason: Reason = "",
    who: Who = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Bring jobs back: each goes on at the stage that failed, with fresh attempts, once.

    Letters that cannot be redriven are named with the reason; the others go on. Safe to repeat, and
    to run again after it was killed: a job's step is done once. Exit codes: 0 all were redriven; 1
    some were not, or the canary stopped it; 2 wrong usage, or not confirmed; 3 Kafka or Postgres
    does not serve (run it again for the rest).
    """
    settings, rate_per_s = load_settings(), parse_rate(rate)
    arm(settings.crash_point)
    reader = Reader(settings)
    with connect(settings) as conn:
        picked = pick(reader, conn, ids or [], cluster, filter_)
        if not picked.total:
            say("No open letter fits; nothing was done.")
            return
        if dry_run:
            refused = _show_plans(settings, reader.at(x.place for x in picked.heads), output)
            _end(bool(refused or picked.faults), picked.faults)
            return
        if not ids and not yes and not typer.confirm(f"Redrive {picked.total:,}?", err=True):
            raise typer.Exit(BAD_SETUP)
        deed = Deed(Action.REDRIVE, actor(who), reason, uuid4())
        first = None if canary is None else Canary(canary, canary_timeout)
        report = _redrive(settings, conn, deed, picked, rate_per_s, first)
    (print_report if output is Format.JSON else show_report)(report, picked.faults)
    stopped = f"; the canary stopped it, {report.left:,} were not tried" if report.stopped else ""
    say(f"Redriven: {report.redriven:,} of {picked.total:,}{stopped}. Batch {report.batch}.")
    if report.refused or report.stopped or picked.faults:
        raise typer.Exit(BAD_NEWS)


def parse_rate(text: str | None) -> float | None:
    """`50/s`, `20/m`, `100/h` or a number as letters per second. Raises `BadSetup`."""
    if text is None:
        return None
    found = _RATE.fullmatch(text)
    rate_per_s = float(found[1]) / _SECONDS[found[2] or "s"] if found else 0.0
    if rate_per_s <= 0:
        raise BadSetup(f"--rate takes 50/s, 20/m, 100/h or a number above 0; {text!r} is none.")
    return rate_per_s


def _redrive(
    settings: Settings,
    conn: SyncConn,
    deed: Deed,
    picked: Picked,
    rate_per_s: float | None,
    canary: Canary | None,
) -> Report:
    with progress("redriving", len(picked.heads)) as told:
        call = Redrive(settings, conn, deed, rate_per_s=rate_per_s, progress=told)
        try:
            return call.run(picked.heads, canary=canary)
        except (HandoffError, KeyboardInterrupt):
            done = call.report.redriven
            say(f"Broke off: {done:,} of {picked.total:,} are redriven. Run it again.")
            raise


def _show_plans(settings: Settings, letters: Iterator[Letter], output: Format) -> list[Refused]:
    """What a redrive would do; those that it could not do."""
    rows: list[dict[str, str | None]] = []
    refused: list[Refused] = []
    for letter in letters:
        plan = plan_redrive(letter, settings.names)
        known = isinstance(plan, Refused)
        refused += [plan] if isinstance(plan, Refused) else []
        rows.append(
            {
                "letter": str(letter.place),
                "job": letter.job,
                "to": None if isinstance(plan, Refused) else plan.topic,
                "step": None if known else str(letter.seq + 1),
                "why_not": plan.reason if isinstance(plan, Refused) else None,
            }
        )
    if output is Format.JSON:
        print_json(rows)
    else:
        print_table(
            ("letter", "job", "to", "step", "why not"),
            (tuple(value or "" for value in row.values()) for row in rows),
        )
    say(f"{len(rows) - len(refused):,} would be redriven.")
    return refused


def _end(bad: bool, faults: dict[str, str]) -> None:
    for fault in faults.values():
        complain(fault)
    if bad:
        raise typer.Exit(BAD_NEWS)


def discard(
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the action.")],
    ids: Ids = None,
    cluster: Cluster = None,
    filter_: Filter = None,
    who: Who = None,
    yes: Yes = False,
) -> None:
    """Say that nothing will be done about letters: they are listed with --all only.

    Nothing is deleted, and a job stays failed; its letter can still be redriven by its id. Exit
    codes: 0 done; 1 some ids name no letter; 2 not confirmed.
    """
    settings = load_settings()
    if not reason.strip():
        raise BadSetup("--reason is empty; say why nothing will be done.")
    reader = Reader(settings)
    with connect(settings) as conn:
        picked = pick(reader, conn, ids or [], cluster, filter_)
        count = len(picked.heads)
        if count and not yes:
            typed = typer.prompt(f"Type {count} to discard {count} letters", err=True)
            if str(typed).strip() != str(count):
                complain("That is not the number; nothing was discarded.")
                raise typer.Exit(BAD_SETUP)
        deed = Deed(Action.DISCARD, actor(who), reason, uuid4())
        done = 0
        with progress("discarding", count) as told:
            for chunk in chunks(reader.at(x.place for x in picked.heads), CHUNK_LETTERS):
                record_discarded(conn, deed, chunk)
                done += len(chunk)
                told(done)
    say(f"Discarded: {done:,}. Batch {deed.batch}.")
    _end(bool(picked.faults), picked.faults)
