"""How dead letters look: clusters, letters, one letter whole, and what a redrive came to."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from streams.cli.output import (
    message_console,
    moment,
    print_json,
    print_table,
    result_console,
    say,
    status_text,
)
from streams.deadletter.actions import Acted
from streams.deadletter.clusters import Cluster, cluster_key
from streams.deadletter.edit import as_text
from streams.deadletter.find import Head
from streams.deadletter.letters import Header, Letter
from streams.deadletter.plan import Refused
from streams.deadletter.reader import Span
from streams.deadletter.redriving import Report
from streams.state.views import Job

#: Of a message in a table; `show` and JSON have all of it.
_MESSAGE_CHARS = 120


def when(epoch_ms: int) -> str:
    return moment(datetime.fromtimestamp(epoch_ms / 1000, UTC))


def show_clusters(clusters: Sequence[Cluster]) -> None:
    print_table(
        ("cluster", "stage", "letters", "first", "last", "error", "example"),
        (
            (
                c.key,
                c.where,
                f"{c.letters:,}",
                when(c.first_ms),
                when(c.last_ms),
                _error(c.kind, c.error),
                c.example,
            )
            for c in clusters
        ),
    )


def show_letters(letters: Iterable[Letter]) -> None:
    print_table(
        ("place", "job", "stage", "step", "written", "bytes", "cluster", "error"),
        (
            (
                str(x.place),
                x.job,
                x.where,
                str(x.seq or ""),
                when(x.at_ms),
                f"{len(x.value or b''):,}",
                cluster_key(x),
                _error(x.kind, x.message),
            )
            for x in letters
        ),
    )


def _error(kind: str, message: str) -> str:
    text = as_text(message.encode(errors="backslashreplace")).replace("\n", " ")
    text = text if len(text) <= _MESSAGE_CHARS else text[: _MESSAGE_CHARS - 1] + "…"
    return f"{kind}: {text}" if kind else text


def letter_json(letter: Letter) -> dict[str, Any]:
    """Everything that the letter holds; bytes both as text (null if they are no UTF-8) and as they
    are."""
    return {
        "place": str(letter.place),
        **letter.place._asdict(),
        "topic_id": letter.topic_id,
        "written_ms": letter.at_ms,
        "system": letter.system,
        "flow": letter.flow,
        "stage": letter.stage,
        "job": letter.job or None,
        "step": letter.seq or None,
        "error": {"kind": letter.kind, "message": letter.message},
        "cluster": cluster_key(letter),
        "origin": asdict(letter.origin),
        "key": _bytes_json(letter.key),
        "value": _bytes_json(letter.value),
        "headers": [_header_json(x) for x in letter.headers],
        "told": [_header_json(x) for x in letter.told],
    }


def _bytes_json(raw: bytes | None) -> dict[str, str | None] | None:
    if raw is None:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    return {"text": text, "base64": b64encode(raw).decode()}


def _header_json(header: Header) -> dict[str, Any]:
    name, value = header
    return {"name": name, "value": _bytes_json(value)}


def show_letter(letter: Letter, job: Job | None, acted: Sequence[Acted]) -> None:
    facts = Table.grid(padding=(0, 2))
    origin = letter.origin
    facts.add_row("place", str(letter.place))
    facts.add_row("written", f"{when(letter.at_ms)} by {letter.system}")
    facts.add_row("job", letter.job or "none")
    if job is not None:
        state = Text.assemble(status_text(job.status), f" at {job.stage}, step {job.seq}")
        facts.add_row("is now", state)
    facts.add_row("stage", f"{letter.where}, step {letter.seq}" if letter.seq else letter.where)
    error = f"{letter.kind}: {letter.message}" if letter.kind else letter.message
    facts.add_row("error", Text(as_text(error.encode(errors="backslashreplace")), style="red"))
    facts.add_row("cluster", cluster_key(letter))
    if origin.topic:
        facts.add_row("came from", f"{origin.topic}/{origin.partition}/{origin.offset}")
    if origin.timestamp_ms is not None:
        facts.add_row("came at", when(max(0, origin.timestamp_ms)))
    if origin.group:
        facts.add_row("group", origin.group)
    if origin.deliveries is not None:
        facts.add_row("deliveries", str(origin.deliveries))
    facts.add_row("key", "null" if letter.key is None else as_text(letter.key))
    console = result_console()
    console.print(facts)
    if letter.headers:
        print_table(("header", "value"), (_header_row(x) for x in letter.headers))
    if acted:
        print_table(
            ("action", "who", "when", "why", "sent to", "batch"), (_acted_row(a) for a in acted)
        )
    console.print()
    console.print("(null)" if letter.value is None else as_text(letter.value), soft_wrap=True)


def _header_row(header: Header) -> tuple[str, str]:
    name, value = header
    return as_text(name.encode()), "null" if value is None else as_text(value)


def _acted_row(a: Acted) -> tuple[str, ...]:
    sent = "" if a.sent_topic is None else f"{a.sent_topic}/{a.sent_partition}/{a.sent_offset}"
    return a.action, a.who, moment(a.acted_at), a.why, sent, str(a.batch)


def say_what_is_gone(spans: Iterable[Span]) -> None:
    """Topics whose beginning has expired: what lay there cannot be listed."""
    begins: dict[str, list[str]] = {}
    for span in spans:
        if span.low > 0:
            begins.setdefault(span.topic.name, []).append(f"[{span.partition}]@{span.low}")
    for topic, places in begins.items():
        say(f"{topic} begins at {', '.join(places)}: earlier letters are gone.")


def show_report(report: Report, faults: dict[str, str]) -> None:
    """The table of what did not go through; the sum goes to stderr."""
    rows = [(text, "", reason) for text, reason in faults.items()]
    rows += [(str(x.place), x.job, x.reason) for x in report.refused]
    rows += [
        (str(head.place), head.job, f"failed again: {_error(*_error_of(step.error))}")
        for head, step in report.failed_again
    ]
    rows += [(str(x.place), x.job, "has no new step yet") for x in report.silent]
    if rows:
        print_table(("letter", "job", "why not"), rows)


def _error_of(error: Any) -> tuple[str, str]:
    return ("", "") if error is None else (error.kind, error.message)


def print_report(report: Report, faults: dict[str, str]) -> None:
    print_json(
        {
            "batch": report.batch,
            "wanted": report.wanted + len(faults),
            "redriven": report.redriven,
            "left": report.left,
            "refused": [
                *({"place": text, "job": None, "reason": why} for text, why in faults.items()),
                *(_refused_json(x) for x in report.refused),
            ],
            "failed_again": [
                {**_head_json(head), "status": step.status, "error": _error(*_error_of(step.error))}
                for head, step in report.failed_again
            ],
            "silent": [_head_json(x) for x in report.silent],
        }
    )


def _refused_json(refused: Refused) -> dict[str, str | None]:
    return {"place": str(refused.place), "job": refused.job or None, "reason": refused.reason}


def _head_json(head: Head) -> dict[str, Any]:
    return {"place": str(head.place), "job": head.job, "step": head.seq}


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, on a terminal only; yields a function that takes the count so far."""
    console = message_console()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as p:
        task = p.add_task(what, total=total)
        yield lambda count: p.update(task, completed=count)
