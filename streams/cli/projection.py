"""`handoff projection verify|rebuild`: is `jobs` the fold of the log, and making it so."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, fields
from types import TracebackType
from typing import IO, Any, Self

import typer

from streams.cli.audit import drawn_progress
from streams.cli.output import BAD_NEWS, Format, Output, print_table, result_console, say
from streams.config import load_settings
from streams.crashpoints import arm
from streams.errors import HandoffError
from streams.state.difference import Difference
from streams.state.rebuild import SHADOW, Standing
from streams.state.rebuild import rebuild as rebuild_jobs
from streams.state.shadow import Tally
from streams.state.verify import verify as verify_jobs
from streams.state.views import Job

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="The rows of jobs, held against the log."
)

_EXAMPLES = 20
_VALUE_CHARS = 80


@app.callback()
def projection() -> None:
    """The rows of jobs, held against the log."""


@app.command()
def verify(output: Output = Format.TABLE) -> None:
    """Fold job-state anew, as far as the projection stands, and compare: every job, every field.

    Changes nothing, and may run while workers and projectors run. Steps that job_history lacks are
    named, too. States that compaction has taken are no difference. `projection rebuild` mends.

    Exit codes: 0 equal; 1 different; 2 there is nothing to verify; 3 Kafka or Postgres does not
    serve.
    """
    settings = load_settings()
    with Differences() as found, drawn_progress() as progress:
        tally = asyncio.run(verify_jobs(settings, found.add, progress))
        progress("", 0, 0)
        if output is Format.JSON:
            found.print_json(tally, "equal" if tally.equal else "different")
        else:
            found.show()
            show_tally(tally)
            result_console().print("equal" if tally.equal else "DIFFERENT")
    if not tally.equal:
        raise typer.Exit(BAD_NEWS)


@app.command()
def rebuild(output: Output = Format.TABLE) -> None:
    """Build jobs anew from job-state, beside running workers, then swap; say what that mended.

    Nobody sees an empty or half table. Steps that job_history lacks are added, nothing of it goes.
    Rows that the log does not know vanish. Projectors wait for the swap and go on; who reads jobs
    for long delays it. Safe to run again after it was killed.

    Exit codes: 0 done; 2 another one is at work, or jobs cannot be replaced; 3 Kafka or Postgres
    does not serve, or somebody holds jobs for too long (run it again).
    """
    settings, standing = load_settings(), Standing()
    arm(settings.crash_point)
    with Differences() as found, drawn_progress() as progress:
        try:
            tally = asyncio.run(rebuild_jobs(settings, found.add, progress, standing))
        except (HandoffError, KeyboardInterrupt):
            if standing.built:
                say(remains(standing))
            raise
        progress("", 0, 0)
        if output is Format.JSON:
            found.print_json(tally, "rebuilt")
        else:
            found.show()
            show_tally(tally)
            result_console().print(
                f"rebuilt: {tally.missing:,} jobs added, {tally.altered:,} changed, "
                f"{tally.extra:,} removed; {tally.history:,} steps added to job_history"
            )


def remains(standing: Standing) -> str:
    """What a rebuild that broke off leaves behind."""
    if standing.in_doubt:
        return (
            "Broke off while the swap was being committed: whether it was, `handoff projection "
            "verify` tells. Run the rebuild again."
        )
    return (
        f"Broke off before the swap: jobs is as it was. Table {SHADOW} may remain, the next "
        "rebuild drops it; steps that were added to job_history stay."
    )


class Differences:
    """All differences, kept in a file until the verdict is known; the first ones for people."""

    def __init__(self) -> None:
        self.first: list[Difference] = []
        self.fields: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._file: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, difference: Difference) -> None:
        if self.fields.total() < _EXAMPLES:
            self.first.append(difference)
        self.fields[difference.field] += 1
        # Not orjson: payloads may hold integers of any size.
        self._file.write(json.dumps(as_json(difference), default=str) + "\n")

    def show(self) -> None:
        """A table of the first ones, and how many there are of each kind."""
        if not self.fields:
            return
        print_table(
            ("job", "field", "in the log", "in Postgres"),
            ((d.trace_id, d.field, _short(d.in_log), _short(d.in_postgres)) for d in self.first),
        )
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.fields.most_common())
        more = self.fields.total() - len(self.first)
        result_console().print(f"Differences: {kinds}." + (" -o json has all." if more else ""))

    def print_json(self, tally: Tally, verdict: str) -> None:
        """One document, written as it is read: there may be millions."""
        head = json.dumps({"verdict": verdict, "equal": tally.equal, **asdict(tally)}, indent=2)
        sys.stdout.write(head.removesuffix("\n}") + ',\n  "differences": [')
        self._file.seek(0)
        for n, line in enumerate(self._file):
            sys.stdout.write((",\n    " if n else "\n    ") + line.rstrip("\n"))
        sys.stdout.write("\n  ]\n}\n")


def as_json(difference: Difference) -> dict[str, Any]:
    return {
        "job": difference.trace_id,
        "field": difference.field,
        "in_log": _plain(difference.in_log),
        "in_postgres": _plain(difference.in_postgres),
    }


def _plain(value: Any) -> Any:
    """A whole job by the three fields that tell where it is."""
    if isinstance(value, Job):
        return {"stage": value.stage, "status": value.status, "seq": value.seq}
    return value.model_dump() if hasattr(value, "model_dump") else value


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Job):
        return f"{value.stage}, {value.status}, seq {value.seq}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"


#: How the counts of a tally are said to people.
_LABELS = {
    "records": "records read",
    "jobs": "jobs in the log",
    "missing": "  missing in jobs",
    "extra": "  only in jobs",
    "altered": "  different",
    "history": "steps missing in job_history",
    "excused": "jobs whose state was compacted away",
    "tombstones": "tombstones",
    "rejected": "records that are no states",
}


def show_tally(tally: Tally) -> None:
    """The counts; those of rare things only if there are any, rejected records by place."""
    always = ("records", "jobs", "missing", "extra", "altered", "history")
    counts = {f.name: getattr(tally, f.name) for f in fields(Tally) if f.name in _LABELS}
    print_table(
        ("what", "count"),
        ((_LABELS[n], f"{count:,}") for n, count in counts.items() if count or n in always),
    )
    for reject in tally.rejects:
        result_console().print(f"no state: {reject}")
