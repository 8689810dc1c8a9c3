"""What the demo prints: the count, one job's waterfall, where to look next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from streams.cli.checks import SQL
from streams.cli.demo_run import Progressed
from streams.cli.output import (
    Format,
    complain,
    duration,
    message_console,
    print_json,
    print_table,
    result_console,
    say,
)
from streams.cli.prepare import exports
from streams.cli.supervise import Say
from streams.cli.tally import Tally
from streams.cli.trace_view import as_json, show
from streams.flow import Flow
from streams.postgres import SyncConn
from streams.state.queries import counts, effects_of, history
from streams.state.waterfall import Waterfall, waterfall

_LOG_LINES = 15
#: Share of the work after which progress is said again where there is no terminal to draw it on.
_SAY_EVERY = 0.1


@contextmanager
def drawn_progress() -> Iterator[tuple[Progressed, Say]]:
    """How far it is, on stderr: a bar on a terminal, otherwise a line now and then."""
    console = message_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,} finished"),
        TimeElapsedColumn(),
    )
    said = 0.0
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as p:
        task = p.add_task("mail", total=1)

        def progressed(submitted: int, finished: int) -> None:
            nonlocal said
            p.update(task, total=submitted, completed=finished)
            if not console.is_terminal and finished >= (said + _SAY_EVERY) * submitted:
                said = finished / submitted
                say(f"{finished:,} of {submitted:,} finished")

        yield progressed, say


def report(conn: SyncConn, flow: Flow, tally: Tally, output: Format) -> None:
    """Print the count and one job's story."""
    story = _story(conn, flow)
    if output is Format.JSON:
        faults = tally.faults()
        summary = {**asdict(tally), "doubles": tally.doubles, "faults": faults}
        print_json({**summary, "trace": as_json(story) if story else None})
        return
    print_table(("what", "count"), _rows(tally))
    console = result_console()
    if story is not None:
        console.print()
        show(story, console)
    console.print()
    console.print(tally.audit)


def _rows(tally: Tally) -> list[tuple[str, str]]:
    rows = [
        ("submitted", f"{tally.submitted:,}"),
        ("done", f"{tally.done:,}"),
        ("dead-lettered", f"{tally.failed:,}"),
        ("jobs/s", f"{tally.jobs_per_s:,.0f}"),
        ("end to end, p50", _seconds(tally.p50_s)),
        ("end to end, p95", _seconds(tally.p95_s)),
        ("jobs that act", f"{tally.acting:,}"),
        ("desk calls", f"{tally.desk.calls:,}"),
        ("desk effects", f"{tally.desk.effects:,}"),
        ("doubles", f"{tally.doubles:,}"),
        ("deliveries skipped", f"{tally.skipped:,}"),
    ]
    if tally.kills_wanted:
        rows.append(("SIGKILLs", f"{len(tally.kills):,}"))
    return rows


def _seconds(value: float | None) -> str:
    return duration(None if value is None else value * 1e6)


def _story(conn: SyncConn, flow: Flow) -> Waterfall | None:
    row = conn.execute(SQL["longest_story"], {"flow": flow.name}).fetchone()
    if row is None:
        return None
    return waterfall(history(conn, row["trace_id"]), effects_of(conn, row["trace_id"]))


def explain(conn: SyncConn, flow: Flow, tally: Tally, logs: Path) -> None:
    """Why it does not add up, where the unfinished jobs stand, and the end of each log."""
    for fault in tally.faults():
        complain(fault)
    for count in counts(conn, flow=flow.name):
        if not count.status.terminal:
            say(f"{count.jobs:,} jobs are {count.status.value} after stage {count.stage}.")
    for log in sorted(logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        say("\n".join((f"The end of {log}:", *lines)))


def where_next(env: Mapping[str, str]) -> str:
    """What to type in another terminal while the demo is kept."""
    return (
        f"Everything is kept until Ctrl-C. In another terminal:\n  {exports(env)}\n"
        "  handoff jobs ls --limit 10\n  handoff trace ID\n  handoff effects ls\n"
        "  handoff audit\n  handoff doctor"
    )
