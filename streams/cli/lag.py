"""`handoff lag`: is a group behind, does it move, and who owns it?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from streams.cli.output import BAD_NEWS, Format, Output, moment, print_json, print_table
from streams.cli.watch import Watch, watch
from streams.config import load_settings
from streams.postgres import connect
from streams.why.facts import WorkerRow
from streams.why.group_facts import LIMIT, lags
from streams.why.lag import Lag, Pace
from streams.why.wording import span

app = typer.Typer(add_completion=False)

_STYLES = {Pace.MOVING: "cyan", Pace.STUCK: "bold red", Pace.IDLE: "green"}


@app.command()
def lag(
    stage: Annotated[
        list[str] | None,
        typer.Option("--stage", help="Only this stage or agent (projector, …); repeatable."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Read all that is behind, however much that is.")
    ] = False,
    again: Watch = False,
    output: Output = Format.TABLE,
) -> None:
    """Show how far each group is behind, in records and seconds, and whether it moves. Reads only.

    Records are counted, from the group's position on, without those that are finished already and
    without markers of transactions: a group that has done everything is 0 behind. Of a partition
    5,000 offsets are read; what lies farther is counted by offsets (~), unless --exact. Seconds are
    the age of the oldest of them. A tracer that does not run is left out.

    moving: behind, and at work; stuck: behind, and nothing is done about it; idle: nothing to do.

    Exit codes: 0 nothing is stuck (with --watch: always); 1 something is; 2 wrong usage or set-up;
    3 Kafka or Postgres does not answer.
    """
    settings = load_settings()
    limit = sys.maxsize if exact else LIMIT

    def look() -> list[Lag]:
        with connect(settings) as conn:
            return lags(conn, settings, stage or (), limit=limit)

    if again:
        watch(lambda: partial(_show, look(), output))
        return
    found = look()
    _show(found, output)
    if any(one.pace is Pace.STUCK for one in found):
        raise typer.Exit(BAD_NEWS)


def _show(found: Sequence[Lag], output: Format) -> None:
    if output is Format.JSON:
        print_json([as_json(one) for one in found])
        return
    columns = ("group", "part", "records", "behind", "state", "per s", "owner", "why")
    print_table(columns, map(_row, found))


def as_json(one: Lag) -> dict[str, Any]:
    seen = one.seen
    return {
        "group": seen.group,
        "agent": seen.agent,
        "flow": seen.flow or None,
        "topic": seen.topic,
        "partition": seen.partition,
        "committed": seen.head,
        "end": seen.end,
        "records": seen.records,
        "exact": seen.exact,
        "seconds": round(one.seconds, 3),
        "oldest_at": moment(seen.oldest_at) or None,
        "state": one.pace.value,
        "reason": one.reason and one.reason.value,
        "why": one.why,
        "per_s": round(one.per_s, 1),
        "owner": _owner(seen.slot, seen.owner),
    }


def _owner(slot: int | None, row: WorkerRow | None) -> dict[str, Any] | None:
    if slot is None:
        return None
    found: dict[str, Any] = {"slot": slot, "incarnation": None, "host": None, "pid": None}
    if row is not None:
        found |= {"incarnation": row.incarnation, "host": row.host, "pid": row.pid}
    return found


def _row(one: Lag) -> tuple[str | Text, ...]:
    seen = one.seen
    return (
        seen.group,
        str(seen.partition),
        f"{'' if seen.exact else '~'}{seen.records:,}",
        span(round(one.seconds, 1)) if seen.records else "",
        Text(one.pace.value, style=_STYLES[one.pace]),
        f"{one.per_s:,.0f}" if seen.moved else "",
        _who(seen.slot, seen.owner),
        one.why,
    )


def _who(slot: int | None, row: WorkerRow | None) -> str:
    if slot is None:
        return "nobody"
    if slot < 0:
        return "a stranger"
    return f"slot {slot}" if row is None else f"slot {slot} ({row.incarnation} on {row.host})"
