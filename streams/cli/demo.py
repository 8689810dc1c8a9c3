"""`handoff demo`: real mail through three agents, counted at the end."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from infra.services import services
from streams import topics
from streams.audit import Options, audited
from streams.cli.demo_desk import Desk
from streams.cli.demo_report import drawn_progress, explain, report, where_next
from streams.cli.demo_run import DemoRun, sample_lines
from streams.cli.load import DEFAULT_APP, load_flow
from streams.cli.output import BAD_NEWS, Format, Output, say
from streams.cli.prepare import environment, prepare, worker_spec
from streams.cli.supervise import StopRequest, Supervisor, stop_on_signals
from streams.cli.tally import Tally
from streams.config import Settings, load_settings
from streams.flow import Flow
from streams.kafka import admin_client, delete_topics
from streams.postgres import connect, drop_database, with_database

app = typer.Typer(add_completion=False)

_WORKER, _PROJECTOR = "worker", "projector"
_TICK_S = 0.2


@app.command()
def demo(
    kill: Annotated[
        int, typer.Option(min=0, max=100, help="SIGKILL the worker so many times on the way.")
    ] = 0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Mails to submit; the sample repeats if need be.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep all running afterwards, to look around.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Stream real mail through classify, enrich and act, and show that it adds up.

    Starts Kafka, Postgres, a desk that records each call and effect, and two workers; nothing is
    left running. With KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL set it uses those services, with
    topics and a database of its own that it deletes at the end.

    Exit codes: 0 submitted = done + dead-lettered, nothing was done twice, the desk carried out
    exactly what the jobs asked for, and the audit found nothing; 1 it does not add up; 2 and 3 it
    could not run.
    """
    flow = load_flow(DEFAULT_APP)
    place = Path(tempfile.mkdtemp(prefix="handoff-demo-"))
    with _world(flow) as settings, stop_on_signals() as request:
        tally = _Demo(flow, settings, place, request, output).run(kill, count, keep)
    if tally.faults():
        say(f"The logs are in {place}.")
        raise typer.Exit(BAD_NEWS)
    shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _world(flow: Flow) -> Iterator[Settings]:
    """Services, and on services that are not ours names of our own, deleted afterwards."""
    given = load_settings()
    tag = f"demo_{secrets.token_hex(3)}"
    say("Starting Kafka and Postgres, where they are not given.")
    with services() as endpoints:
        settings = load_settings(
            kafka_bootstrap_servers=endpoints.kafka_bootstrap_servers,
            database_url=endpoints.database_url,
            prefix=f"{given.prefix}{tag}.",
        )
        settings = with_database(settings, tag)
        prepare(flow, settings, lambda _: None)
        try:
            yield settings
        finally:
            if "kafka_bootstrap_servers" in given.model_fields_set:
                names = [spec.name for spec in topics.specs(flow, settings)]
                delete_topics(settings, admin_client(settings), names)
            if "database_url" in given.model_fields_set:
                drop_database(settings)


@dataclass(frozen=True, slots=True)
class _Demo:
    """The processes of one demo, from their start to their end."""

    flow: Flow
    settings: Settings
    place: Path
    request: StopRequest
    output: Format

    def run(self, kills: int, count: int | None, keep: bool) -> Tally:
        supervisor = Supervisor(say)
        desk = Desk(self.place)
        try:
            self._start(supervisor, desk)
            run = DemoRun(self.flow, self.settings, supervisor, _WORKER)
            with drawn_progress() as (progressed, tell):
                tally = run.run(
                    sample_lines(count), kills, self.request, progressed, tell, desk.count
                )
            tally = self._audited(tally, desk)
            with connect(self.settings) as conn:
                report(conn, self.flow, tally, self.output)
                if tally.faults():
                    explain(conn, self.flow, tally, self.place)
            if keep:
                self._stay(supervisor, desk)
            return tally
        finally:
            grace_s = self.settings.stop_s
            supervisor.stop(grace_s, self.request.hurry)

    def _audited(self, tally: Tally, desk: Desk) -> Tally:
        """The count, and what a judge says who trusts none of the programs that made it."""
        with audited(self.settings, Options(targets=(desk.record,))) as verdict:
            return replace(tally, audit=verdict.line(), audit_findings=sum(verdict.found.values()))

    def _start(self, supervisor: Supervisor, desk: Desk) -> None:
        desk.start(supervisor)
        env = {**environment(self.settings), **desk.env}
        stages = list(self.flow.inputs)
        for name, runs in ((_WORKER, stages), (_PROJECTOR, [_PROJECTOR, "timers"])):
            log = self.place / f"{name}.log"
            supervisor.start(worker_spec(name, DEFAULT_APP, env, *runs, log=log))

    def _stay(self, supervisor: Supervisor, desk: Desk) -> None:
        say(where_next({**environment(self.settings), **desk.env}))
        while not self.request.stop.wait(_TICK_S):
            supervisor.tick()
