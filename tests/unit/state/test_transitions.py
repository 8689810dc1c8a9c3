"""The life of a job: the table allows what it lists and nothing else."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.state import Status
from streams.state.transitions import (
    TRANSITIONS,
    Event,
    IllegalTransition,
    after,
    diagram,
    may_follow,
)

STATUSES = [None, *Status]
README = Path(__file__).parents[3] / "README.md"


def life(events: list[Event]) -> list[Status | None]:
    """The statuses that a job goes through when illegal events are refused."""
    passed: list[Status | None] = [None]
    for event in events:
        try:
            passed.append(after(passed[-1], event))
        except IllegalTransition:
            continue
    return passed


def test_every_status_has_a_row_and_every_event_a_use() -> None:
    assert set(TRANSITIONS) == set(STATUSES)
    assert {e for row in TRANSITIONS.values() for e in row} == set(Event)


def test_every_status_can_be_reached_from_a_new_job() -> None:
    reached: set[Status | None] = {None}
    while more := {to for s in reached for to in TRANSITIONS[s].values()} - reached:
        reached |= more
    assert reached == set(STATUSES)


@pytest.mark.parametrize("status", [s for s in Status if s.terminal])
def test_a_terminal_state_changes_by_a_redrive_only(status: Status) -> None:
    assert all(event.by_redrive for event in TRANSITIONS[status])


def test_a_done_job_is_done_for_ever() -> None:
    assert not TRANSITIONS[Status.DONE]


@pytest.mark.parametrize("status", [None, Status.RUNNING, Status.DONE])
def test_a_job_that_failed_nowhere_cannot_be_redriven(status: Status | None) -> None:
    for event in (e for e in Event if e.by_redrive):
        with pytest.raises(IllegalTransition, match="cannot redrive"):
            after(status, event)


@pytest.mark.parametrize("status", [Status.FAILED, Status.WAITING, Status.CANCELLED])
def test_a_redriven_job_goes_wherever_a_stage_can_bring_it(status: Status) -> None:
    led = {after(status, event) for event in Event if event.by_redrive}
    assert led == {Status.RUNNING, Status.WAITING, Status.DONE, Status.FAILED}


def test_an_illegal_event_says_what_would_be_allowed() -> None:
    with pytest.raises(
        IllegalTransition, match=r"A job that is failed cannot finish.*: redrive and "
    ):
        after(Status.FAILED, Event.FINISH)


def test_the_table_cannot_be_changed_at_run_time() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[Status.DONE][Event.FINISH] = Status.RUNNING  # type: ignore[index]


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_whatever_comes_a_job_ends_once_between_redrives(events: list[Event]) -> None:
    passed = life(events)
    ends = sum(1 for s in passed if s is not None and s.terminal)
    redriven = sum(event.by_redrive for event in events)
    assert ends <= redriven + 1
    assert all(
        later is not None and may_follow(earlier, later) for earlier, later in pairwise(passed)
    )


@given(st.sampled_from(STATUSES), st.sampled_from(Event))
def test_an_event_leads_where_the_table_says_or_raises(status: Status | None, event: Event) -> None:
    if event in TRANSITIONS[status]:
        assert after(status, event) is TRANSITIONS[status][event]
    else:
        with pytest.raises(IllegalTransition):
            after(status, event)


def test_the_diagram_draws_every_transition() -> None:
    arrows = [line.strip() for line in diagram().splitlines()[1:]]
    drawn = {
        (start, event, target)
        for line in arrows
        if ": " in line
        for start, target in [line.partition(": ")[0].split(" --> ")]
        for event in line.partition(": ")[2].split(", ")
    }
    assert drawn == {
        (str(status or "[*]"), str(event), str(target))
        for status, row in TRANSITIONS.items()
        for event, target in row.items()
    }


def test_the_readme_shows_the_diagram_of_the_table() -> None:
    _, _, rest = README.read_text(encoding="utf-8").partition("<!-- transitions:begin -->\n")
    shown, end, _ = rest.partition("<!-- transitions:end -->")
    assert end, "README.md has no block between the transitions markers"
    wanted = f"```mermaid\n{diagram()}\n```"
    assert shown.strip() == wanted, "paste the output of: python -m streams.state.transitions"
