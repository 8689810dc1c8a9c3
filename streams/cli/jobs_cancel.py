"""`handoff jobs cancel ID…|--filter`: jobs that shall go no further, and all that they forked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from schemas.ids import is_job_id
from schemas.state import Status
from streams.cli.dlq_choice import Yes, actor
from streams.cli.filters import filter_words
from streams.cli.output import (
    BAD_NEWS,
    BAD_SETUP,
    Format,
    Output,
    complain,
    moment,
    print_json,
    print_table,
    say,
    status_text,
)
from streams.cli.times import since_when
from streams.config import load_settings
from streams.control.cancel import Answer, Canceller, Did
from streams.crashpoints import arm
from streams.errors import BadSetup
from streams.postgres import SyncConn, connect
from streams.state.queries import NoSuchJob, find_job, list_jobs

_NAMES: Final = ("status", "stage", "flow", "since")
_PAGE: Final = 1_000
_LOOK_EVERY_S: Final = 0.5

By = Annotated[
    str | None,
    typer.Option("--by", "--as", help="Who orders it.", show_default="the user of this system"),
]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept with the order.")]


@dataclass(slots=True)
class _Picked:
    ids: list[str]
    faults: list[str] = field(default_factory=list)


def cancel(
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Job ids, or their beginnings.", metavar="[ID]...", show_default=False),
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help='All jobs that fit and are not over: "stage=act since=2h"; also status=, flow=.',
        ),
    ] = None,
    reason: Why = "",
    by: By = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until all are over, and all that they forked.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that --wait takes at most.")] = 300,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Cancel jobs, and with each all that it forked: nothing of them runs again.

    One that waits is woken and cancelled by its hop at once; one that is queued, when its record's
    turn comes; of one that runs the handler sees `job.cancelled`, and is cut off after a grace.
    What a handler ended with before that is kept, and goes no further. A whole id that nobody knows
    yet is cancelled when it comes. Safe to repeat.

    Exit codes: 0 all are cancelled or asked to be (with --wait: cancelled); 1 some were over
    before, are no jobs, or did not end in time; 2 wrong usage, or not confirmed; 3 Kafka or
    Postgres does not serve (run it again).
    """
    settings = load_settings()
    arm(settings.crash_point)
    with connect(settings) as conn:
        picked = _pick(conn, ids or [], filter_)
        if picked.ids and not ids and not yes:
            many = f"Cancel {len(picked.ids):,} jobs, and all that they forked?"
            if not typer.confirm(many, err=True):
                raise typer.Exit(BAD_SETUP)
        canceller = Canceller(settings, conn)
        answers = canceller.cancel(picked.ids, by=actor(by), reason=reason) if picked.ids else []
        left: list[str] = []
        if wait:
            left = _wait(canceller, [a.job for a in answers if a.did is not Did.OVER], timeout)
        ends = _ends(conn, answers) if wait else {}
    _show(answers, ends, output)
    for fault in picked.faults:
        complain(fault)
    if not picked.ids and not picked.faults:
        say("No job fits that is not over; nothing was done.")
    if left:
        complain(f"{len(left):,} were not over after {timeout:g} s, the first of them {left[0]}.")
    if picked.faults or left or not all(_went_well(a, ends) for a in answers):
        raise typer.Exit(BAD_NEWS)


def _pick(conn: SyncConn, ids: Sequence[str], text: str | None) -> _Picked:
    """Jobs by ids or by a filter. Raises `BadSetup` for none and both."""
    if bool(ids) == (text is not None):
        raise BadSetup("Name the jobs in one way: ids, or --filter '…'.")
    if text is not None:
        return _Picked(_fitting(conn, text))
    picked = _Picked([])
    for each in ids:
        try:
            picked.ids.append(find_job(conn, each).trace_id)
        except NoSuchJob as e:
            # It may have been submitted a moment ago.
            if is_job_id(each):
                picked.ids.append(each)
            else:
                picked.faults.append(e.message)
    picked.ids = list(dict.fromkeys(picked.ids))
    return picked


def _fitting(conn: SyncConn, text: str) -> list[str]:
    words = filter_words(text, _NAMES, "job there is")
    try:
        status = Status(words["status"]) if "status" in words else None
    except ValueError:
        known = ", ".join(Status)
        raise BadSetup(f"--filter status= takes {known}; not {words['status']!r}.") from None
    since = since_when(words["since"], datetime.now(UTC)) if "since" in words else None
    found: list[str] = []
    after = None
    while True:
        page = list_jobs(
            conn,
            status=status,
            stage=words.get("stage"),
            flow=words.get("flow"),
            since=since,
            after=after,
            limit=_PAGE,
        )
        found += [job.trace_id for job in page if not job.status.terminal]
        if len(page) < _PAGE:
            # A job that changed between two pages may stand on both.
            return list(dict.fromkeys(found))
        after = page[-1].cursor


def _wait(canceller: Canceller, ids: Sequence[str], timeout_s: float) -> list[str]:
    """Those that are not over in time. What came to wait since is woken, too."""
    deadline = time.monotonic() + timeout_s
    left = canceller.unfinished(ids)
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        canceller.wake(left)
        left = canceller.unfinished(left)
    return left


def _ends(conn: SyncConn, answers: Sequence[Answer]) -> dict[str, Status]:
    found = {}
    for answer in answers:
        try:
            found[answer.job] = find_job(conn, answer.job).status
        except NoSuchJob:
            continue
    return found


def _went_well(answer: Answer, ends: dict[str, Status]) -> bool:
    if answer.did is Did.OVER:
        return answer.status is Status.CANCELLED
    return not ends or ends.get(answer.job) is Status.CANCELLED


def _show(answers: Sequence[Answer], ends: dict[str, Status], output: Format) -> None:
    if output is Format.JSON:
        print_json([_json(a, ends) for a in answers])
        return
    columns = ("job", "was", "stage", "what was done", *(("now",) if ends else ()))
    print_table(
        columns,
        (
            (
                a.job,
                status_text(a.status.value if a.status else "unknown"),
                a.stage,
                _said(a),
                *((status_text(ends.get(a.job, "unknown")),) if ends else ()),
            )
            for a in answers
        ),
    )


def _said(a: Answer) -> str:
    if a.did is Did.OVER:
        return f"nothing: already {a.status} since {moment(a.since)}"
    if a.did is Did.WOKEN:
        return "cancelled at once: it waited, and its hop was woken"
    if a.status is None:
        return "asked: no step of it is known yet; its first hop will see"
    return "asked: its next hop will see"


def _json(a: Answer, ends: dict[str, Status]) -> dict[str, object]:
    order = a.order
    return {
        "job": a.job,
        "did": a.did.value,
        "was": a.status,
        "stage": a.stage or None,
        "since": a.since,
        "by": order and order.by,
        "at": order and order.at,
        "reason": order and order.reason,
        "now": ends.get(a.job),
    }
