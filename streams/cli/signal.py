"""`handoff signal ID NAME [JSON]`: tell a job what it waits for, or will wait for."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NoReturn

import orjson
import typer

from schemas.ids import is_job_id
from schemas.state import JOIN
from streams.cli.dlq_choice import actor
from streams.cli.find import find
from streams.cli.output import BAD_NEWS, Format, Output, complain, print_json, print_table, say
from streams.client import Client
from streams.config import Settings, load_settings
from streams.errors import BadSetup, BadWorld
from streams.kafka import admin_client, describe_topics
from streams.postgres import SyncConn, connect, load_queries
from streams.state.queries import NoSuchJob, find_job
from streams.state.views import Job

app = typer.Typer(add_completion=False)

_SQL: Final = load_queries("streams.cli")


@dataclass(frozen=True, slots=True)
class Sending:
    """A signal on its way."""

    job: str
    flow: str
    signal: str
    value: Any
    by: str
    id: str


@app.command()
def signal(
    job_id: Annotated[
        str,
        typer.Argument(help="The job's id, or a prefix that only it has.", metavar="ID"),
    ],
    name: Annotated[
        str, typer.Argument(help="The signal, as the code waits for it.", metavar="NAME")
    ],
    value: Annotated[
        str,
        typer.Argument(help="""Its value: '{"approved": true}', '"text"', 3.""", metavar="[JSON]"),
    ] = "null",
    by: Annotated[
        str | None,
        typer.Option(help="Who says it.", show_default="the user of this system"),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option(
            help="The job's flow: for a job that Postgres does not know yet, by its whole id."
        ),
    ] = None,
    signal_id: Annotated[
        str | None,
        typer.Option(
            "--id", help="The signal's id; the same one twice is one signal. Made up if not given."
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Send a job a signal, such as an approval that it waits for.

    One that the job does not wait for yet is kept until it does; what it waits for now is said.
    Who sent it, and when, is kept with the job.

    Exit codes: 0 it is sent; 1 there is no such job, several begin so, or it is over; 2 wrong usage
    or set-up: the value is no JSON, nothing in the flow waits; 3 Kafka or Postgres does not serve.
    """
    settings, what = load_settings(), _parsed(value)
    if not name.strip():
        raise BadSetup("Name the signal as the code that waits for it does.")
    with connect(settings) as conn:
        job, of = _job(conn, job_id, flow)
        sending = Sending(job, of, name, what, actor(by), signal_id or secrets.token_hex(16))
        _can_wait(settings, of)
        # Before it is sent: what it waits for then may be something else.
        run = conn.execute(_SQL["waiting_run"], {"job": job}).fetchone() or {}
        advice = _advice(sending, run, _is_known(conn, of))
    asyncio.run(_send(settings, sending))
    _tell(sending, run, output)
    say(advice)


def _parsed(value: str) -> Any:
    try:
        return orjson.loads(value)
    except ValueError as e:
        raise BadSetup(
            f"The value {value!r} is no JSON: {e}. Quote it for the shell, and a text for JSON, "
            """too: '{"approved": true}', '"a text"'."""
        ) from None


def _job(conn: SyncConn, job_id: str, flow: str | None) -> tuple[str, str]:
    """Id and flow of the job, or the end of the command."""
    if flow is None:
        return _alive(find(conn, job_id))
    try:
        found = find_job(conn, job_id)
    except NoSuchJob as e:
        if is_job_id(job_id):
            return job_id, flow
        _refuse(f"{e.message} One that Postgres does not know yet is signalled by its whole id.")
    if is_job_id(job_id) and found.trace_id != job_id:
        return job_id, flow  # a child of it is known already
    if found.flow != flow:
        _refuse(f"Job {found.trace_id} is one of flow {found.flow}, not of {flow}.")
    return _alive(found)


def _alive(job: Job) -> tuple[str, str]:
    if job.status.terminal:
        _refuse(f"Job {job.trace_id} is over: {job.status.value} at {job.stage}. Nothing was sent.")
    return job.trace_id, job.flow


def _refuse(why: str) -> NoReturn:
    complain(why)
    raise typer.Exit(BAD_NEWS)


def _can_wait(settings: Settings, flow: str) -> None:
    topic = settings.names.stage_topic(flow, JOIN)
    if not describe_topics(settings, admin_client(settings), [topic]):
        raise BadSetup(
            f"Nothing in flow {flow} waits for a signal: there is no topic {topic}. If its code "
            "has come to do so, run `handoff topics apply`."
        )


async def _send(settings: Settings, sending: Sending) -> None:
    try:
        async with Client(settings) as client:
            await client.signal(
                sending.flow,
                sending.job,
                sending.signal,
                sending.value,
                by=sending.by,
                id=sending.id,
            )
    except BadWorld as e:
        raise BadWorld(
            f"{e.message} Run it again with --id {sending.id}: then it counts once in any case."
        ) from e


def _is_known(conn: SyncConn, flow: str) -> bool:
    """Whether any job of the flow has waited before."""
    row = conn.execute(_SQL["ever_waited"], {"flow": flow}).fetchone() or {}
    return bool(row["so"])


def _tell(sending: Sending, run: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        print_json({**asdict(sending), "waits": run.get("waits", [])})
    else:
        row = asdict(sending)
        row["value"] = orjson.dumps(sending.value).decode()
        print_table(tuple(row), [tuple(row.values())])


def _advice(sending: Sending, run: dict[str, Any], known: bool) -> str:
    """What becomes of the signal."""
    kept = f"The signal is kept until it waits for {sending.signal}."
    if not run:
        first = "" if known else f" No job of flow {sending.flow} has done so before."
        return f"The job waits for nothing now. {kept}{first}"
    stage, waits = run["stage"], run["waits"]
    if run["status"] != "open":
        return f"Its run of {stage} waits for a person: handoff why {sending.job}. {kept}"
    if any(f"{each} ".startswith(f"signal {sending.signal} ") for each in waits):
        return f"It is what the job waits for at {stage}. Follow it: handoff trace {sending.job}"
    return f"At {stage} the job waits for {', '.join(waits) or 'nothing'}. {kept}"
