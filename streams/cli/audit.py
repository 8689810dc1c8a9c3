"""`handoff audit`: is anything lost, doubled, stuck or in doubt? Proved from what lies there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from streams.audit import Finding, Options, Verdict, audited
from streams.audit.rules import Rule, Severity
from streams.audit.run import Progress as Progressed
from streams.cli.output import (
    BAD_NEWS,
    Format,
    Output,
    message_console,
    moment,
    print_table,
    result_console,
    say,
)
from streams.cli.times import since_when
from streams.config import load_settings

app = typer.Typer(add_completion=False)

_EXAMPLES = 20
#: Parts of the work that are no reading.
_PARTS = {
    "rules": "applying the rules",
    "comparing": "comparing",
    "swapping": "swapping",
}
_SEVERITIES = {Severity.BROKEN: "bold red", Severity.ATTENTION: "yellow"}


@app.command()
def audit(
    flow: Annotated[str | None, typer.Option(help="Only this flow.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only what happened since: 15m, 2h, 7d or a time."),
    ] = None,
    stuck_after: Annotated[
        float, typer.Option(min=0, help="Seconds after which waiting work counts as stuck.")
    ] = 900.0,
    target: Annotated[
        list[Path] | None,
        typer.Option(help="An effect target's own record, JSON lines with a key; may be repeated."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Join all topics, job-state, Postgres and the ledger; name each fault by job and place.

    Reads only, and may run while workers run. What retention and compaction have taken is said, not
    judged. The rules: infra/decisions/0010-audit.md.

    Exit codes: 0 nothing was found; 1 something was; 2 there is nothing to audit, or a wrong
    option; 3 Kafka or Postgres cannot be read.
    """
    options = Options(flow, _since_ms(since), stuck_after, tuple(target or ()))
    with drawn_progress() as progress, audited(load_settings(), options, progress) as verdict:
        progress("", 0, 0)
        if output is Format.JSON:
            print_verdict(verdict)
        else:
            show_verdict(verdict)
        clean = verdict.clean
    if not clean:
        raise typer.Exit(BAD_NEWS)


def _since_ms(text: str | None) -> int | None:
    return None if text is None else int(since_when(text, datetime.now(UTC)).timestamp() * 1000)


@contextmanager
def drawn_progress() -> Iterator[Progressed]:
    """How far it is, on stderr: a bar on a terminal, otherwise a line for each part."""
    console = message_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    said = ""
    with bar:
        task = bar.add_task("", total=None)

        def progressed(what: str, done: int, total: int) -> None:
            nonlocal said
            bar.update(task, description=what, completed=done, total=max(total, 1))
            if what and what != said and not console.is_terminal:
                say(_PARTS.get(what, f"reading {what}"))
            said = what

        yield progressed


def show_verdict(verdict: Verdict) -> None:
    """For people: figures, findings by rule with examples, the horizon, one line."""
    print_table(("what", "count"), _figures(verdict))
    for rule, count in verdict.found.items():
        _show_rule(verdict, rule, count)
    console = result_console()
    lines = [*_starts(verdict), *verdict.horizon_lines()]
    if lines:
        console.print("\nBeyond the horizon, so not judged:")
        for line in lines:
            console.print(f"  {line}")
    console.print()
    console.print(verdict.line())


def _figures(verdict: Verdict) -> Iterator[tuple[str, str]]:
    jobs, counts = verdict.jobs, verdict.counts
    yield "flows", ", ".join(verdict.flows)
    yield "jobs accepted", f"{jobs.accepted:,}"
    for name in ("done", "failed", "cancelled", "waiting", "running", "new", "lost"):
        if (count := getattr(jobs, name)) or name in ("done", "failed"):
            yield f"  {name}", f"{count:,}"
    for name, count in counts.items():
        if count or name in ("records", "steps", "effects"):
            yield name.replace("_", " "), f"{count:,}"


def _show_rule(verdict: Verdict, rule: Rule, count: int) -> None:
    console = result_console()
    console.print()
    console.print(
        Text.assemble((rule.name, _SEVERITIES[rule.severity]), f"  {count:,}  {rule.sentence}")
    )
    print_table(("job", "step", "place", "what"), map(_row, verdict.findings(rule.name, _EXAMPLES)))
    if count > _EXAMPLES:
        console.print(f"… and {count - _EXAMPLES:,} more: -o json has them all.")


def _row(finding: Finding) -> tuple[str, str, str, str]:
    return finding.job or "", str(finding.step or ""), finding.place, finding.detail


def _starts(verdict: Verdict) -> Iterator[str]:
    """Partitions that are not seen from their first record on."""
    for seen in verdict.seen():
        if seen.start > 0:
            first = seen.first_ms
            when = moment(datetime.fromtimestamp(first / 1000, UTC)) if first else "empty"
            yield f"{seen.topic}[{seen.partition}] is seen from offset {seen.start} on ({when})"


def print_verdict(verdict: Verdict) -> None:
    """One JSON document with all findings, written as they are read: there may be millions."""
    head = verdict.summary()
    head["verdict"] = verdict.line()
    head["seen"] = [asdict(seen) for seen in verdict.seen()]
    head["horizon_lines"] = verdict.horizon_lines()
    head["rules"] = {
        rule.name: {"severity": rule.severity, "sentence": rule.sentence} for rule in verdict.found
    }
    out = sys.stdout
    out.write(orjson.dumps(head, option=orjson.OPT_INDENT_2).decode().removesuffix("\n}"))
    out.write(',\n  "findings": [')
    for n, finding in enumerate(verdict.findings()):
        out.write(",\n    " if n else "\n    ")
        out.write(orjson.dumps(asdict(finding)).decode())
    out.write("\n  ]\n}\n")
