"""`handoff submit FILE|-`: JSON lines become jobs; ids on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from schemas.ids import id_from_field, id_from_line
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import BAD_NEWS, complain, message_console, say
from streams.client import Client, entry_stage
from streams.config import Settings, load_settings
from streams.errors import BadSetup
from streams.flow import Flow, Stage

app = typer.Typer(add_completion=False)

#: Faults that are named one by one; the rest is counted.
_NAMED_FAULTS = 20


@app.command()
def submit(
    file: Annotated[str, typer.Argument(help="JSON lines, .gz or not; - for stdin.")],
    app: App = DEFAULT_APP,
    stage: Annotated[str | None, typer.Option(help="The first stage unless given.")] = None,
    id_field: Annotated[
        str | None, typer.Option(help="Field of each line that names its job.")
    ] = None,
) -> None:
    """Submit one job per line and print the ids.

    Ids are made from the flow and the line, or from --id-field, so the same file submitted again
    gives the same jobs and nothing is done twice. Invalid lines are named on stderr and left out;
    the valid ones are sent all the same.

    Exit codes: 0 all lines were accepted; 1 some were invalid; 3 Kafka did not confirm.
    """
    flow, settings = load_flow(app), load_settings()
    with open_lines(file) as lines:
        reader = LineReader(flow, entry_stage(flow, stage), settings, id_field)
        sent = asyncio.run(_send(flow, reader, lines, settings, stage))
    say(f"Submitted {sent:,} jobs to {flow.name}; {reader.faults:,} lines were invalid.")
    if reader.faults:
        raise typer.Exit(BAD_NEWS)


async def _send(
    flow: Flow, reader: LineReader, lines: BinaryIO, settings: Settings, stage: str | None
) -> int:
    sent = 0
    with submission_progress(None) as progress:
        async with Client(settings) as client:
            async for ids in client.submit_many(flow, reader.read(lines), stage):
                sys.stdout.write("".join(f"{job_id}\n" for job_id in ids))
                sys.stdout.flush()
                sent += len(ids)
                progress(sent)
    return sent


class LineReader:
    """Lines → (job id, JSON); faulty lines are named on stderr and counted in `faults`.

    Keeps 16 bytes and a counter per distinct line, nothing else.
    """

    def __init__(
        self, flow: Flow, stage: Stage[Any, Any], settings: Settings, id_field: str | None = None
    ) -> None:
        self._flow = flow.name
        self._stage = stage
        self._limit = settings.max_payload_bytes
        self._id_field = id_field
        self._seen: Counter[bytes] = Counter()
        self.faults = 0

    def read(self, lines: BinaryIO) -> Iterator[tuple[str, bytes]]:
        for number, raw in enumerate(lines, 1):
            line = raw.rstrip(b"\r\n")
            if not line.strip():
                continue
            try:
                job_id = self._id_of(line)
                if len(line) > self._limit:
                    raise ValueError(f"{len(line):,} bytes, and a payload may have {self._limit:,}")
                self._stage.input.model_validate_json(line)
            except ValueError as e:
                self._fault(number, e)
            else:
                yield job_id, line

    def _id_of(self, line: bytes) -> str:
        if self._id_field is None:
            digest = blake2b(line, digest_size=16).digest()
            occurrence = self._seen[digest]
            self._seen[digest] += 1
            return id_from_line(self._flow, line, occurrence)
        document = orjson.loads(line)
        value = document.get(self._id_field) if isinstance(document, dict) else None
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise ValueError(f"field {self._id_field} holds no text or number")
        return id_from_field(self._flow, str(value))

    def _fault(self, number: int, error: ValueError) -> None:
        self.faults += 1
        if self.faults <= _NAMED_FAULTS:
            complain(f"line {number}: {_reason(error, self._stage.input.__name__)}")
        elif self.faults == _NAMED_FAULTS + 1:
            say("Further invalid lines are counted only.")


def _reason(error: ValueError, model: str) -> str:
    if not isinstance(error, ValidationError):
        return f"{error}."
    first, *rest = error.errors(include_url=False, include_input=False)
    where = ".".join(map(str, first["loc"]))
    more = f" (and {len(rest)} more)" if rest else ""
    return f"no {model}: {where + ': ' if where else ''}{first['msg']}{more}."


@contextmanager
def open_lines(file: str) -> Iterator[BinaryIO]:
    """stdin or a file, unpacked if its name ends in `.gz`. Raises `BadSetup` if it is not there."""
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with gzip.open(file) if file.endswith(".gz") else Path(file).open("rb") as lines:
            yield lines  # type: ignore[misc]
    except gzip.BadGzipFile as e:
        raise BadSetup(f"{file} is not in gzip format: {e}.") from e
    except OSError as e:
        raise BadSetup(f"{file} cannot be read: {e.strerror or e}.") from e


@contextmanager
def submission_progress(total: int | None) -> Iterator[Any]:
    """A bar on stderr, on a terminal only; yields a function that takes the count so far."""
    console = message_console()
    columns = (
        TextColumn("submitting"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as p:
        task = p.add_task("submit", total=total)
        yield lambda count: p.update(task, completed=count)
