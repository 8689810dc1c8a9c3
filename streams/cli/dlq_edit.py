"""`handoff dlq edit`: a letter with another payload, checked and shown before it is sent."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from uuid import uuid4

import typer
from pydantic import BaseModel

from schemas.state import JOIN
from streams.cli.dlq_choice import DryRun, LetterId, Reason, Who, Yes, actor, only
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import BAD_SETUP, result_console, say
from streams.config import load_settings
from streams.deadletter.actions import Action, Deed
from streams.deadletter.edit import check_payload, difference, for_editor, set_fields
from streams.deadletter.find import head_of
from streams.deadletter.letters import Letter
from streams.deadletter.plan import JOIN_AS_IT_IS, Refused, plan_redrive
from streams.deadletter.reader import Reader
from streams.deadletter.redriving import Redrive
from streams.errors import BadRecord, BadSetup
from streams.flow import Flow
from streams.postgres import connect


def edit(
    letter_id: LetterId,
    app: App = DEFAULT_APP,
    file: Annotated[
        Path | None, typer.Option("--file", help="The whole new payload.", exists=True)
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="PATH=VALUE, such as a.b.0=3; VALUE is JSON, or text."),
    ] = None,
    editor: Annotated[
        str, typer.Option(envvar=["VISUAL", "EDITOR"], help="Started if neither is given.")
    ] = "vi",
    reason: Reason = "",
    who: Who = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Redrive a letter with another payload: --file, --set, or your editor if neither is given.

    The new payload must be what the stage takes; the difference is shown first. Exit codes: 0
    redriven; 1 no such letter, the payload is not valid, or the letter cannot be redriven or is of
    a join, whose results are not in it; 2 not confirmed.
    """
    flow, settings = load_flow(app), load_settings()
    letter, _ = only(Reader(settings), letter_id)
    _must_be_a_payload(flow, letter)
    value = _edited(letter, file, assignments or [], editor)
    if value is None or value == letter.value:
        say("The payload is the same; nothing was done. `handoff dlq redrive` sends it as it is.")
        return
    plan = plan_redrive(letter, settings.names, value)
    if isinstance(plan, Refused):
        raise BadRecord(f"The letter at {letter.place} cannot be redriven. {plan.reason}")
    check_payload(value, _stage_of(flow, letter), settings.max_payload_bytes)
    lines = difference(letter.value, value) or ["(only the layout differs)"]
    result_console().print("\n".join(lines), soft_wrap=True)
    if dry_run:
        return
    if not yes and not typer.confirm(f"Redrive job {letter.job} with this payload?", err=True):
        raise typer.Exit(BAD_SETUP)
    deed = Deed(Action.EDIT, actor(who), reason, uuid4())
    with connect(settings) as conn:
        report = Redrive(settings, conn, deed).run([head_of(letter)], {letter.place: value})
    if report.refused:
        raise BadRecord(f"The letter was not redriven. {report.refused[0].reason}")
    say(f"Redriven: job {letter.job} goes on at {letter.where}, step {letter.seq + 1}.")


def _must_be_a_payload(flow: Flow, letter: Letter) -> None:
    """Before an editor is opened. Raises `BadRecord` for what says nothing that could be edited."""
    if letter.stage == JOIN:
        raise BadRecord(f"The letter at {letter.place} takes no other payload. {JOIN_AS_IT_IS}")
    joins = [s.name for s in flow.stages if s.joined is not None]
    if letter.flow == flow.name and letter.stage in joins:
        raise BadRecord(
            f"The letter at {letter.place} refers to a join, whose results lie in Postgres, so "
            f"there is nothing to edit. Mend stage {letter.stage} and redrive the letter as it is."
        )


def _edited(letter: Letter, file: Path | None, assignments: list[str], editor: str) -> bytes | None:
    if file is not None and assignments:
        raise BadSetup("Give --file or --set, not both.")
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as e:
            raise BadSetup(f"{file} cannot be read: {e.strerror or e}.") from e
    if assignments:
        return set_fields(letter.value, assignments)
    before = for_editor(letter.value)
    after = _by_hand(before, editor)
    # What was not touched is the same to the byte, however it was laid out.
    return letter.value if after == before else after.encode(errors="surrogateescape")


def _by_hand(text: str, editor: str) -> str:
    """`text` as a person's editor leaves it, without the line end that editors add."""
    with TemporaryDirectory(prefix="handoff-") as folder:
        path = Path(folder) / "payload.json"
        path.write_text(text + "\n", encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except (OSError, ValueError) as e:
            raise BadSetup(f"The editor {editor} cannot be started: {e}.") from e
        if done.returncode != 0:
            raise BadSetup(f"The editor {editor} ended with {done.returncode}; nothing was sent.")
        return path.read_text(encoding="utf-8", errors="surrogateescape").removesuffix("\n")


def _stage_of(flow: Flow, letter: Letter) -> type[BaseModel]:
    if letter.flow != flow.name:
        raise BadSetup(
            f"The letter is of flow {letter.flow}, but --app names flow {flow.name}; name the app "
            "that declares its stage, so that the payload can be checked."
        )
    model: type[BaseModel] = flow.stage(letter.stage).input
    return model
