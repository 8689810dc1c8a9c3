"""What commands print: results on stdout, messages and progress on stderr, errors as sentences.

Colour appears on a terminal only and never with NO_COLOR; rich sees to both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streams.errors import BadRecord, BadWorld, Fenced, HandoffError

BAD_NEWS = 1
BAD_SETUP = 2
BAD_WORLD = 3
FENCED = 4

#: A pipe has no width; a table must not lose its ids there.
_PIPE_COLUMNS = 240

_STYLES = {
    "done": "green",
    "running": "cyan",
    "waiting": "yellow",
    "failed": "bold red",
    "cancelled": "magenta",
    "in_doubt": "bold red",
    "claimed": "yellow",
}


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="A table for people, or JSON.")]


def result_console() -> Console:
    """stdout; text is printed as it is, since payloads are not markup."""
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return Console(markup=False, highlight=False, width=width, soft_wrap=not sys.stdout.isatty())


def message_console() -> Console:
    """stderr."""
    return Console(stderr=True, markup=False, highlight=False)


def say(message: str) -> None:
    message_console().print(message, soft_wrap=True)


def complain(message: str) -> None:
    message_console().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def exit_code(error: HandoffError) -> int:
    """By blame: a record 1, the set-up 2, the world 3, a twin in our slot 4."""
    if isinstance(error, BadWorld):
        return BAD_WORLD
    if isinstance(error, Fenced):
        return FENCED
    return BAD_NEWS if isinstance(error, BadRecord) else BAD_SETUP


def print_json(value: Any) -> None:
    """One document; numbers of 64 bits stay exact, times are ISO 8601."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    sys.stdout.write(orjson.dumps(value, option=options, default=str).decode() + "\n")


def print_json_line(value: Any) -> None:
    """One document in one line, for answers that come one by one."""
    options = orjson.OPT_APPEND_NEWLINE
    sys.stdout.write(orjson.dumps(value, option=options, default=str).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "job")
    for row in rows:
        table.add_row(*row)
    result_console().print(table)


def status_text(status: str) -> Text:
    return Text(status, style=_STYLES.get(status, ""))


def moment(value: datetime | None) -> str:
    """A time for people, in UTC and to the millisecond."""
    if value is None:
        return ""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def duration(microseconds: float | None) -> str:
    """Three significant digits with a unit."""
    if microseconds is None:
        return "-"
    for limit, scale, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms"), (1.2e8, 1e6, "s")):
        if microseconds < limit:
            return f"{microseconds / scale:.3g} {unit}"
    return f"{microseconds / 6e7:,.1f} min"
