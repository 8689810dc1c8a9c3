"""`handoff jobs tail`: steps as they are committed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer
from rich.text import Text

from schemas.state import Status
from streams.cli.output import (
    Format,
    Output,
    duration,
    moment,
    print_json_line,
    result_console,
    say,
    status_text,
)
from streams.config import Settings, load_settings
from streams.errors import BadSetup
from streams.kafka import TopicFacts, admin_client, describe_topics, end_offsets, follow
from streams.state.fold import Rejected, Step, parse
from streams.state.projector import state_record

#: Of a job's id: as many digits as its spans begin with.
_ID_CHARS = 12


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which steps are shown; None and an empty prefix filter nothing."""

    flow: str | None = None
    stage: str | None = None
    status: Status | None = None
    job: str = ""

    def takes(self, step: Step) -> bool:
        return (
            self.flow in (None, step.flow)
            and self.stage in (None, step.stage)
            and self.status in (None, step.status)
            and step.trace_id.startswith(self.job)
        )


def tail(
    flow: Annotated[str | None, typer.Option(help="Only steps of this flow.")] = None,
    stage: Annotated[str | None, typer.Option(help="Only steps of this stage.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only steps that led to this.")] = None,
    job: Annotated[str, typer.Option("--job", help="Only jobs whose id begins so.")] = "",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many steps.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Follow job-state: one line per step, as it is committed, from now on until Ctrl-C.

    Columns: when it was committed, job, flow, stage, status (and where it was handed to), step,
    how long the handler ran, error. With -o json one object per line. Joins no group.

    Exit codes: 0 ended by Ctrl-C or --count; 2 wrong usage or set-up; 3 Kafka does not answer.
    """
    settings = load_settings()
    wanted = Wanted(flow, stage, status, job.strip().lower())
    try:
        for shown, step in enumerate(_steps(settings, wanted), 1):
            _show(step, output)
            if shown == count:
                return
    except KeyboardInterrupt:
        return


def _steps(settings: Settings, wanted: Wanted) -> Iterator[Step]:
    topic, ends = _end(settings)
    say(f"Following {topic.name}; Ctrl-C ends it.")
    for batch in follow(settings, topic, ends):
        for record in (state_record(topic, m) for m in batch):
            if record.value is None:
                continue
            step = parse(record, record.value)
            if isinstance(step, Rejected):
                place = f"{topic.name}[{record.partition}]@{record.offset}"
                say(f"{place} is no state ({step.reason}): who writes to {topic.name}?")
            elif wanted.takes(step):
                yield step


def _end(settings: Settings) -> tuple[TopicFacts, dict[int, int]]:
    """What is committed from now on lies past these offsets."""
    name = settings.names.job_state_topic
    with admin_client(settings) as admin:
        topic = describe_topics(settings, admin, [name]).get(name)
        if topic is None:
            raise BadSetup(f"Topic {name} does not exist. Run `handoff topics apply` first.")
        return topic, end_offsets(settings, admin, topic)


def _show(step: Step, output: Format) -> None:
    if output is Format.JSON:
        print_json_line(as_json(step))
    else:
        result_console().print(line(step), soft_wrap=True)
    sys.stdout.flush()


def as_json(step: Step) -> dict[str, Any]:
    return {
        "at": moment(_at(step)),
        "job": step.trace_id,
        "flow": step.flow,
        "stage": step.stage,
        "status": step.status,
        "to": step.handed_to,
        "seq": step.seq,
        "attempts": step.attempts,
        "queued_us": _between(step.produced_us, step.started_us),
        "working_us": _between(step.started_us, step.finished_us),
        "error": None if step.error is None else orjson.loads(step.error),
        "worker": step.worker,
        "partition": step.partition,
        "offset": step.offset,
    }


def line(step: Step) -> Text:
    """One step for people, in one line whatever its error says."""
    told = as_json(step)
    to = f" → {', '.join(step.handed_to)}" if step.handed_to else ""
    parts: list[str | Text | tuple[str, str]] = [
        told["at"],
        f"  {step.trace_id[:_ID_CHARS]}  {step.flow}  {step.stage}  ",
        status_text(step.status),
        f"{to}  #{step.seq}  {duration(told['working_us'])}",
    ]
    if told["error"] is not None:
        error = f"{told['error']['kind']}: {told['error']['message']}"
        parts.append(("  " + _printable(error), "red"))
    return Text.assemble(*parts)


def _printable(text: str) -> str:
    """In one line, and without what would tell a terminal to do something."""
    return "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))


def _at(step: Step) -> datetime:
    return datetime.fromtimestamp(step.committed_us / 1e6, UTC)


def _between(start_us: int | None, end_us: int | None) -> int | None:
    return None if start_us is None or end_us is None else max(0, end_us - start_us)
