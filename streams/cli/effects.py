"""`handoff effects ls|resolve|actions`: the ledger of side effects, and what is in doubt."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from streams.cli.output import (
    BAD_NEWS,
    BAD_SETUP,
    Format,
    Output,
    moment,
    print_json,
    print_table,
    say,
    status_text,
)
from streams.config import load_settings
from streams.context import DidNotHappen, Happened
from streams.errors import BadSetup
from streams.ledger.doubt import Action, effect_actions, happened_twice, resolve
from streams.ledger.queries import Effect, list_effects
from streams.postgres import connect
from streams.rerun import parked_reruns

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The ledger of side effects.")

_WHAT_TO_DO = (
    "Find out at the target, by the key, whether each has happened. Then: handoff effects resolve "
    "KEY --happened --result JSON (or --did-not-happen) --reason 'how you know'."
)
_TWICE = (
    "{n} effect{s} happened twice, so far as is known: handoff effects actions. Look at the "
    "target, its reconcile function, and who resolved what."
)


@app.callback()
def effects() -> None:
    """The ledger of side effects."""


@app.command("ls")
def ls(
    in_doubt: Annotated[
        bool,
        typer.Option(
            "--in-doubt", help="Only effects of which nobody knows whether they happened."
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List effects, the latest claim first. Arguments and results are not shown in the table.

    With --in-doubt the exit code is 1 when there are any: find out at the target, by the key, what
    happened, then `handoff effects resolve`.
    """
    with connect(load_settings()) as conn:
        found = list_effects(conn, in_doubt=in_doubt, limit=limit)
        twice = happened_twice(conn)
    if output is Format.JSON:
        print_json([asdict(effect) for effect in found])
    elif found:
        _show(found, in_doubt=in_doubt)
    else:
        say("No effect is in doubt." if in_doubt else "The ledger is empty.")
    if twice:
        say(_TWICE.format(n=twice, s="" if twice == 1 else "s"))
    if in_doubt and found:
        raise typer.Exit(BAD_NEWS)


@app.command("resolve")
def resolve_command(
    key: Annotated[str, typer.Argument(help="As in `handoff effects ls --in-doubt`.")],
    reason: Annotated[str, typer.Option(help="How you know; it is recorded.")],
    happened: Annotated[
        bool, typer.Option("--happened", help="The target has done it: never call it again.")
    ] = False,
    result: Annotated[
        str | None,
        typer.Option(help="With --happened: what its function would have returned, as JSON."),
    ] = None,
    did_not_happen: Annotated[
        bool,
        typer.Option(
            "--did-not-happen", help="The target has not done it, and will not: call it again."
        ),
    ] = False,
    as_name: Annotated[
        str | None, typer.Option("--as", help="Who says so; your log-in name if not given.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Say what happened to an effect in doubt, after looking at its target.

    Who, what, why and when are recorded (`handoff effects actions`). Afterwards redrive the job, as
    the last line says. Should the doubtful call be answered after all, that is recorded and shown.

    Exit codes: 0 resolved; 1 the effect is not known or not in doubt; 2 wrong usage, or declined.
    """
    answer = _answer(happened, did_not_happen, result)
    said = "did not happen" if did_not_happen else f"happened, with the result {result or 'null'}"
    if not yes and not typer.confirm(f"Effect {key} {said}?", err=True):
        raise typer.Exit(BAD_SETUP)
    with connect(load_settings()) as conn:
        found = resolve(conn, key, answer, actor=as_name or getpass.getuser(), reason=reason)
        # The row is the original's; who waits for it may be a rerun.
        waiting = parked_reruns(conn, found.trace_id, found.stage) or [found.trace_id]
    say(f"Effect {found.name} of job {found.trace_id} at stage {found.stage} {said}. Recorded.")
    if happened and result is None:
        say("No --result was given: a run that expects more than null parks the job again.")
    say("The job still waits. Bring it back with:")
    typer.echo(f"handoff dlq redrive {' '.join(waiting)}")


@app.command("actions")
def actions(
    key: Annotated[str | None, typer.Argument(help="Of this effect only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List what people decided about effects, and what came after it was decided; newest first."""
    with connect(load_settings()) as conn:
        found = effect_actions(conn, key, limit=limit)
    if output is Format.JSON:
        print_json([asdict(action) for action in found])
    elif found:
        columns = ("at", "what", "by", "why", "was", "key")
        print_table(columns, (_action_row(action) for action in found))
    else:
        say("Nothing was decided by hand, and nothing came late.")


def _answer(
    happened: bool, did_not_happen: bool, result: str | None
) -> Happened[str] | DidNotHappen:
    if happened == did_not_happen:
        raise BadSetup("Say what the target says: --happened or --did-not-happen, one of them.")
    if did_not_happen and result is not None:
        raise BadSetup("What did not happen has no result: leave --result out.")
    return DidNotHappen() if did_not_happen else Happened(result or "null")


def _show(found: list[Effect], *, in_doubt: bool) -> None:
    if not in_doubt:
        columns = ("job", "stage", "effect", "status", "calls", "claimed", "key", "note")
        print_table(columns, (_row(effect) for effect in found))
        return
    columns = ("job", "stage", "effect", "since", "slot", "calls", "key", "note")
    print_table(columns, (_doubtful_row(effect) for effect in found))
    say(_WHAT_TO_DO)


def _row(effect: Effect) -> tuple[str | Text, ...]:
    return (
        effect.trace_id,
        effect.stage,
        effect.name,
        status_text(effect.status),
        str(effect.calls),
        moment(effect.claimed_at),
        effect.key,
        effect.note or "",
    )


def _doubtful_row(effect: Effect) -> tuple[str, ...]:
    return (
        effect.trace_id,
        effect.stage,
        effect.name,
        moment(effect.claimed_at),
        f"{effect.slot} ({effect.incarnation})",
        str(effect.calls),
        effect.key,
        effect.note or "its attempt is dead, and no other run has come back to it",
    )


def _action_row(action: Action) -> tuple[str | Text, ...]:
    what = action.action.replace("_", " ")
    style = "bold red" if action.action == "happened_twice" else ""
    return (
        moment(action.at),
        Text(what, style=style),
        action.actor,
        action.reason,
        action.was if not action.was_note else f"{action.was}: {action.was_note}",
        action.key,
    )
