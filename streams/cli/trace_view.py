"""Draws a job's waterfall in the terminal, and spells it as JSON."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.state import JOIN, Status
from streams.cli.output import duration, moment, status_text
from streams.state.forks import ForkStory, waits_for_branches
from streams.state.runs import RunMove, waits_in_run
from streams.state.views import Effect
from streams.state.waterfall import Axis, Lane, Pending, Waterfall, took_us

_MAX_COLUMNS = 60
_MIN_COLUMNS = 20
#: What stands beside the bars: stage, status, figures.
_BESIDE_COLUMNS = 78

_PHASE_STYLES = {"░": "yellow", "┄": "yellow", "█": "cyan", "▒": "magenta"}


def as_json(story: Waterfall) -> dict[str, object]:
    lanes = [
        {
            **asdict(lane),
            "queued_us": lane.queued_us,
            "working_us": lane.working_us,
            "committing_us": lane.committing_us,
            "fork": None if lane.fork is None else _fork_json(lane.fork),
        }
        for lane in story.lanes
    ]
    return {
        "trace_id": story.job_id,
        "parent": story.parent,
        "flow": story.flow,
        "status": story.status,
        "born_us": story.born_us,
        "total_us": story.total_us,
        "hops": lanes,
        "pending": None if story.pending is None else asdict(story.pending),
    }


def _fork_json(fork: ForkStory) -> dict[str, object]:
    return {
        "id": fork.join.id,
        **asdict(fork.join),
        "missing": fork.join.missing,
        "took_us": _joined_after_us(fork),
        "last_branch": fork.last,
        "last_branch_us": _last_after_us(fork),
    }


def show(story: Waterfall, console: Console) -> None:
    """Draw on `console`, as wide as it allows."""
    console.print(drawn(story, console.width))


def drawn(story: Waterfall, width: int) -> RenderableType:
    """The story as it fits into `width` columns."""
    columns = max(_MIN_COLUMNS, min(_MAX_COLUMNS, width - _BESIDE_COLUMNS))
    axis = Axis(story, columns)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, width=columns)
    grid.add_column()
    for lane in story.lanes:
        _add_lane(grid, lane, axis)
    if story.pending is not None:
        _add_pending(grid, story.pending, axis)
    legend = "░ queued  █ working  ▒ committing"
    if axis.compressed:
        legend += f"  ┄ time compressed: {duration(axis.left_out_us)} are not drawn"
    parts: list[RenderableType] = [_head(story), grid, Text(legend, style="dim")]
    return Group(*parts)


def _head(story: Waterfall) -> Text:
    branch = "" if story.parent is None else f"  branch of {story.parent}"
    return Text.assemble(
        ("job ", "dim"),
        story.job_id,
        ("  flow ", "dim"),
        story.flow,
        "  ",
        status_text(story.status),
        ("  total ", "dim"),
        duration(story.total_us),
        (branch, "dim"),
    )


def _add_lane(grid: Table, lane: Lane, axis: Axis) -> None:
    hop = lane.hop
    if (gap := _gap(lane)) is not None:
        grid.add_row("", "", "", Text(gap, style="dim"))
    figures = (
        f"queued {duration(lane.queued_us)}, working {duration(lane.working_us)}, "
        f"committing {duration(lane.committing_us)}"
    )
    if hop.attempts > 1:
        figures += f", {hop.attempts} attempts"
    label = Text.assemble((f"{hop.seq} ", "dim"), hop.stage)
    grid.add_row(label, _outcome(lane), _coloured(axis.bar(lane)), figures)
    _add_effects(grid, lane.effects)
    if hop.error is not None:
        grid.add_row("", "", "", Text(f"{hop.error.kind}: {hop.error.message}", style="red"))
    if hop.status is Status.FAILED:
        grid.add_row("", "", "", Text(f"dead letter; handoff dlq show {hop.trace_id}"))
    if lane.run is not None:
        for text in _moved(lane.run):
            grid.add_row("", "", "", Text(text))
    elif hop.status is Status.WAITING:
        grid.add_row("", "", "", Text(_wait(lane)))


def _moved(run: RunMove) -> list[str]:
    """Of a step of a run: what it asked for, and how it ended."""
    if run.begins:
        what = f"waits for {run.asked[0]}" if run.asked else f"begins a run of {run.stage}"
        return [f"⇢ {what}"]
    told = []
    if run.asked:
        told.append(f"⇢ run of {run.stage}: {'; '.join(run.asked)}")
    if run.ended:
        told.append(f"run of {run.stage} over: {run.ended}")
    return told or [f"run of {run.stage} goes on"]


def _wait(lane: Lane) -> str:
    hop = lane.hop
    if waits_in_run(hop.status, hop.stage, hop.wakes_at, hop.error):
        return "waits in a run"
    if hop.wakes_at is not None:
        return f"timer due {moment(hop.wakes_at)}"
    if not waits_for_branches(hop.status, hop.to):
        return "waits for a person"
    return "waits for branches" if lane.fork is None else _fork(lane.fork)


def _fork(fork: ForkStory) -> str:
    """One line, however many branches there are."""
    join = fork.join
    text = (
        f"⋔ {join.expected:,} branches to {join.stage}: {join.done:,} done, {join.failed:,} failed,"
        f" {join.missing:,} missing"
    )
    took_us, last_us = _joined_after_us(fork), _last_after_us(fork)
    if took_us is not None:
        text += f"; {join.status} after {duration(took_us)}"
    if last_us is not None:
        text += f"; the last to end, {fork.last}, took {duration(last_us)}"
    return text


def _joined_after_us(fork: ForkStory) -> float | None:
    closed_at = fork.join.closed_at
    return None if closed_at is None else _us(closed_at - fork.join.forked_at)


def _last_after_us(fork: ForkStory) -> float | None:
    return None if fork.last_at is None else _us(fork.last_at - fork.join.forked_at)


def _us(passed: timedelta) -> float:
    # Clocks of workers and of Postgres differ by a little.
    return max(0.0, passed.total_seconds() * 1e6)


def _add_pending(grid: Table, pending: Pending, axis: Axis) -> None:
    label = Text.assemble((f"{pending.seq} ", "dim"), ", ".join(pending.stages))
    since = duration(pending.now_us - pending.since_us)
    text = f"handed on {since} ago, queued or in work, not committed"
    grid.add_row(label, "under way", _coloured(axis.waiting_bar(pending)), text)
    _add_effects(grid, pending.effects)


def _add_effects(grid: Table, effects: tuple[Effect, ...]) -> None:
    for effect in effects:
        grid.add_row(Text(f"  ↳ {effect.name}", style="dim"), "", "", _effect(effect))


def _gap(lane: Lane) -> str | None:
    """What passed between the step before and the record of this one, where that was a wait."""
    if lane.run is not None and not lane.run.begins:
        came = [each for each in lane.run.after if each != "start"]
        return f"⋯ {duration(lane.gap_us)} until: {'; '.join(came)}" if came else None
    if lane.after is Status.WAITING and lane.hop.stage == JOIN:
        return f"⋯ {duration(lane.gap_us)} until the record that ended its wait for branches"
    if lane.after is Status.WAITING:
        return f"⋯ {duration(lane.gap_us)} until its timer had returned it"
    if lane.after is not None and lane.after.terminal:
        return f"⋯ {duration(lane.gap_us)} until it was redriven"
    return None


def _outcome(lane: Lane) -> Text:
    if lane.hop.status is Status.RUNNING and lane.hop.to:
        return Text("→ " + ", ".join(lane.hop.to))
    return status_text(lane.hop.status)


def _coloured(bar: str) -> Text:
    text = Text()
    for cell in bar:
        text.append(cell, _PHASE_STYLES.get(cell, ""))
    return text


def _effect(effect: Effect) -> Text:
    calls = f"{effect.calls} call{'s' if effect.calls != 1 else ''}"
    return Text.assemble(
        "effect ", status_text(effect.status), f", {calls}, {duration(took_us(effect))}"
    )
