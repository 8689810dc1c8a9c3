"""`handoff diff A B`: what did two jobs do differently?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streams.cli.find import find
from streams.cli.output import (
    BAD_NEWS,
    Format,
    Output,
    duration,
    print_table,
    result_console,
)
from streams.cli.replay import print_exact_json, short
from streams.config import load_settings
from streams.postgres import connect
from streams.replay.diff import HopPair, diff_jobs, queued_us, working_us
from streams.replay.paths import parse_path, spell
from streams.replay.report import difference_json
from streams.state.queries import history
from streams.state.views import Hop

app = typer.Typer(add_completion=False)

JobId = Annotated[str, typer.Argument(help="A job's id or a prefix that only it has.")]


@app.command()
def diff(
    a: JobId,
    b: JobId,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Do not compare this, such as data.thread; may be repeated."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Compare two jobs hop by hop: stage, status, next stage, kind of error, data by JSON path.

    Attempts and durations are shown, and are no difference. Children are jobs of their own,
    compared by their ids (A/0 and B/0).

    Exit codes: 0 they did the same; 1 they did not, or there is no such job; 2 wrong usage or
    set-up; 3 Postgres does not answer.
    """
    ignored = [parse_path(path) for path in ignore or ()]
    with connect(load_settings()) as conn:
        one, other = (find(conn, job).trace_id for job in (a, b))
        pairs = diff_jobs(history(conn, one), history(conn, other), ignored)
    equal = all(pair.equal for pair in pairs)
    if output is Format.JSON:
        hops = [_as_json(n, pair) for n, pair in enumerate(pairs, 1)]
        print_exact_json({"a": one, "b": other, "equal": equal, "hops": hops})
    else:
        _show(pairs)
        console = result_console()
        console.print("They did the same." if equal else "They did not do the same.")
    if not equal:
        raise typer.Exit(BAD_NEWS)


def _show(pairs: list[HopPair]) -> None:
    columns = ("hop", "stage", "status", "to", "attempts", "queued", "working")
    rows = []
    for n, pair in enumerate(pairs, 1):
        cells = [_cells(pair.a), _cells(pair.b)]
        rows.append((str(n), *map(_joined, *cells)))
    print_table(columns, rows)
    different = [(n, d) for n, pair in enumerate(pairs, 1) for d in pair.differences]
    if different:
        print_table(
            ("hop", "path", "a", "b"),
            ((str(n), spell(d.path), short(d.was), short(d.now)) for n, d in different),
        )


def _cells(hop: Hop | None) -> tuple[str, ...]:
    if hop is None:
        return ("-",) * 6
    return (
        hop.stage,
        hop.status.value,
        ", ".join(hop.to) or "-",
        str(hop.attempts),
        duration(queued_us(hop)),
        duration(working_us(hop)),
    )


def _joined(a: str, b: str) -> str:
    return a if a == b else f"{a} | {b}"


def _as_json(n: int, pair: HopPair) -> dict[str, Any]:
    return {
        "hop": n,
        "a": _hop_json(pair.a),
        "b": _hop_json(pair.b),
        "differences": [difference_json(d) for d in pair.differences],
    }


def _hop_json(hop: Hop | None) -> dict[str, Any] | None:
    if hop is None:
        return None
    return {
        "stage": hop.stage,
        "status": hop.status.value,
        "to": list(hop.to),
        "attempts": hop.attempts,
        "queued_us": queued_us(hop),
        "working_us": working_us(hop),
    }
