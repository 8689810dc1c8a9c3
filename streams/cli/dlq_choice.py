"""Which letters a command means: ids, a cluster or a filter, exactly one of them."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import typer

from streams.cli.filters import filter_words
from streams.cli.output import BAD_NEWS, complain
from streams.cli.times import since_when
from streams.deadletter.actions import Settled
from streams.deadletter.choice import Choice
from streams.deadletter.find import Head, choose, find
from streams.deadletter.letters import Letter
from streams.deadletter.reader import Reader
from streams.errors import BadSetup
from streams.postgres import SyncConn

_NAMES = ("flow", "stage", "error", "since", "before")

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        help="Job ids, their beginnings, or topic/partition/offset.",
        metavar="[ID]...",
        show_default=False,
    ),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="All open letters of a cluster of `dlq ls`.")
]
Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help='All open letters that fit: "stage=act error=timeout since=2h"; also flow=, before=.',
    ),
]
Who = Annotated[
    str | None, typer.Option("--as", help="Who acts.", show_default="the user of this system")
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept with the action.")]
LetterId = Annotated[
    str, typer.Argument(help="A job's id, a beginning of it, or topic/partition/offset.")
]


@dataclass(frozen=True, slots=True)
class Picked:
    """The letters that were meant; `faults` has a sentence for each id that means none."""

    heads: list[Head]
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return len(self.heads) + len(self.faults)


def pick(
    reader: Reader, conn: SyncConn, ids: Sequence[str], cluster: str | None, text: str | None
) -> Picked:
    """Letters by exactly one of ids, cluster and filter. Raises `BadSetup` for none and several.

    An id is taken as it stands; a cluster or a filter leaves out what was acted on before.
    """
    if sum((bool(ids), cluster is not None, text is not None)) != 1:
        raise BadSetup("Name the letters in one way: ids, --cluster KEY or --filter '…'.")
    if ids:
        found = find(reader, ids)
        return Picked(found.latest, found.faults)
    choice = Choice(cluster=cluster) if text is None else parse_filter(text, datetime.now(UTC))
    return Picked(choose(reader, choice, Settled(conn).__contains__))


def parse_filter(text: str, now: datetime) -> Choice:
    """`stage=act error="time out" since=2h` as a choice. Raises `BadSetup` that says what is wrong.

    Times are an age (15m, 2h, 7d) or ISO 8601.
    """
    found = filter_words(text, _NAMES, "letter there is")
    return Choice(
        flow=found.get("flow"),
        stage=found.get("stage"),
        error=found.get("error"),
        since_ms=_epoch_ms(found.get("since"), now),
        before_ms=_epoch_ms(found.get("before"), now),
    )


def _epoch_ms(text: str | None, now: datetime) -> int | None:
    return None if text is None else int(since_when(text, now).timestamp() * 1000)


def actor(who: str | None) -> str:
    """`who`, or the user of this system."""
    if who:
        return who
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number that has no name.
        return f"uid {os.getuid()}"


def only(reader: Reader, letter_id: str) -> tuple[Letter, list[Head]]:
    """The last letter of an id, and the places of earlier ones; or the end of the command."""
    found = find(reader, [letter_id])
    heads = found.heads.get(letter_id)
    letter = next(reader.at([heads[0].place]), None) if heads else None
    if heads is None or letter is None:
        complain(found.faults.get(letter_id, f"The letter of {letter_id} is not there any more."))
        raise typer.Exit(BAD_NEWS)
    return letter, heads[1:]
