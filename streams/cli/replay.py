"""`handoff replay`: what would today's code make of what came before? Compared by record."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from streams.cli.audit import drawn_progress
from streams.cli.dlq_choice import parse_filter
from streams.cli.dlq_redrive import parse_rate
from streams.cli.load import DEFAULT_APP, App, load_flow
from streams.cli.output import (
    BAD_NEWS,
    Format,
    Output,
    complain,
    print_table,
    result_console,
)
from streams.cli.replay_choice import parse_bound, parse_jobs
from streams.cli.times import since_when
from streams.config import Settings, load_settings
from streams.deadletter.choice import Choice
from streams.errors import BadSetup
from streams.logs import configure_logs
from streams.replay import (
    Judged,
    OfFile,
    OfJobs,
    OfLetters,
    OfTopic,
    OfTrace,
    Policy,
    Replayer,
    Report,
    Selection,
    Verdict,
)
from streams.replay.paths import MISSING, parse_path, spell
from streams.state.queries import NoSuchJob

app = typer.Typer(add_completion=False)

_VALUE_CHARS = 60
_SHOWN_DIFFERENCES = 4
_SHOWN_GROUPS = 20
_STYLES = {
    Verdict.SAME: "green",
    Verdict.CHANGED: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.NEW_EFFECT: "bold red",
    Verdict.UNKNOWN: "magenta",
    Verdict.SKIPPED: "dim",
}


@app.command()
def replay(
    trace: Annotated[
        str | None,
        typer.Option(
            help="All records of one job, by its id or a prefix of it, and of the children that it "
            "forked, all the way down."
        ),
    ] = None,
    children: Annotated[
        bool, typer.Option(help="Of --trace: with the job's children, or the job alone.")
    ] = True,
    topic: Annotated[
        str | None, typer.Option(help="A stage's topic, such as mail.classify.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="Of --topic: from this offset, 15m, 2h, 7d ago or a time on."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="Of --topic: before this offset, age or time.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Of --topic: only this partition.")
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", help='Jobs that fit: "status=done stage=act flow=mail since=2h".'),
    ] = None,
    dlq: Annotated[
        str | None,
        typer.Option(help='Open dead letters: all, or as in `dlq redrive --filter "stage=act"`.'),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="A file of `handoff export`; needs no services.")
    ] = None,
    effects: Annotated[
        Policy, typer.Option(help="Answer effects from the ledger, or block them all.")
    ] = Policy.LEDGER,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Do not compare this, such as data.items[*].id; may be repeated."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="At most so many: 50/s, 20/m; a number is per second.")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=256, help="Processes that run handlers.")
    ] = 1,
    examples: Annotated[int, typer.Option(min=0, help="To show of each kind.")] = 3,
    app_: App = DEFAULT_APP,
    output: Output = Format.TABLE,
) -> None:
    """Run consumed records again through the code of --app and compare with what really happened.

    Touches nothing: no record, no offset, no row is written; effects are answered from the ledger,
    and one that it does not know is blocked. What handlers do outside of job.effect happens again.
    Of a fork its join, the number of children and what each was handed are compared; joins read the
    results that they were given. What is compared, and what cannot be known:
    infra/decisions/0013-replay.md.

    Exit codes: 0 all are the same; 1 some are not, or could not be compared, or nothing fits; 2
    wrong usage or set-up; 3 Kafka or Postgres cannot be read.
    """
    chosen = _selection(trace, topic, filter_, dlq, from_file, (from_, to, partition))
    if not children:
        chosen = alone(chosen)
    ignored = [parse_path(path) for path in ignore or ()]
    rate_per_s, settings = parse_rate(rate), quiet(load_settings())
    configure_logs(settings)
    # What handlers print must not mix with the report.
    with drawn_progress() as progress, redirect_stdout(sys.stderr):
        call = Replayer(
            chosen,
            load_flow(app_),
            settings,
            effects=effects,
            ignored=ignored,
            rate_per_s=rate_per_s,
            examples=examples,
            processes=jobs,
            load=partial(load_flow, app_),
            progress=lambda read, total: progress("the selection", read, total),
        )
        try:
            report = call.run()
        except NoSuchJob as e:
            complain(e.message)
            raise typer.Exit(BAD_NEWS) from None
    if output is Format.JSON:
        print_exact_json(report.as_json())
    else:
        show_report(report)
    if not report.all_same:
        raise typer.Exit(BAD_NEWS)


def alone(chosen: Selection) -> OfTrace:
    """One job without its children. Raises `BadSetup` for another selection."""
    if not isinstance(chosen, OfTrace):
        raise BadSetup("--no-children belongs to --trace.")
    return OfTrace(chosen.job, children=False)


def quiet(settings: Settings) -> Settings:
    """Handlers say again what they said when it happened; only warnings, unless told otherwise."""
    if "log_level" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"log_level": "warning"})


def _selection(
    trace: str | None,
    topic: str | None,
    jobs: str | None,
    letters: str | None,
    file: Path | None,
    span: tuple[str | None, str | None, int | None],
) -> Selection:
    """Exactly one way to name records. Raises `BadSetup` for none and several."""
    now = datetime.now(UTC)
    if sum(x is not None for x in (trace, topic, jobs, letters, file)) != 1:
        raise BadSetup(
            "Name the records in one way: --trace ID, --topic NAME, --filter '…', --dlq all, or "
            "--from-file FILE."
        )
    if topic is None and span != (None, None, None):
        raise BadSetup("--from, --to and --partition belong to --topic.")
    if trace is not None:
        return OfTrace(trace)
    if topic is not None:
        start = parse_bound(span[0], lambda t: since_when(t, now, "--from"))
        end = parse_bound(span[1], lambda t: since_when(t, now, "--to"))
        return OfTopic(topic, start, end, span[2])
    if jobs is not None:
        found: OfJobs = parse_jobs(jobs, lambda t: since_when(t, now, "--filter since="))
        return found
    if letters is not None:
        return OfLetters(Choice() if letters == "all" else parse_filter(letters, now))
    assert file is not None
    return OfFile(file)


def print_exact_json(value: object) -> None:
    """One document. Not orjson: payloads may hold integers of any size."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def show_report(report: Report) -> None:
    """For people: kinds of difference with examples, the horizon, one line."""
    console = result_console()
    groups = report.ordered()
    for group in groups[:_SHOWN_GROUPS]:
        style = _STYLES[group.verdict]
        console.print(
            Text.assemble(
                (group.verdict.value, style), f"  {group.count:,}  {group.stage}  {group.kind}"
            )
        )
        if group.examples and group.verdict is not Verdict.SKIPPED:
            print_table(("job", "step", "record", "was → now"), map(_example, group.examples))
        console.print()
    if len(groups) > _SHOWN_GROUPS:
        console.print(f"And {len(groups) - _SHOWN_GROUPS:,} kinds more; -o json has all.")
    if report.redacted:
        console.print("The file was redacted: arguments of effects were not compared.")
    for remark in report.remarks:
        console.print(f"Beyond the horizon: {remark}")
    console.print(report.line())


def _example(judged: Judged) -> tuple[str, ...]:
    shown = judged.differences[:_SHOWN_DIFFERENCES]
    lines = [f"{spell(d.path)}: {short(d.was)} → {short(d.now)}" for d in shown]
    if len(judged.differences) > len(shown):
        lines.append(f"and {len(judged.differences) - len(shown)} more")
    if judged.message:
        lines.append(judged.message)
    return judged.job or "-", str(judged.seq or ""), judged.place, "\n".join(lines)


def short(value: object) -> str:
    """A JSON value for a cell of a table."""
    if value is MISSING:
        return "nothing"
    text = repr(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"
