"""Who runs with whom after a death."""

from __future__ import annotations

from datetime import UTC, datetime

from streams.runtime.journal_rows import Started
from streams.runtime.stage_journal import first_group
from tests.unit.runtime.fakes import FakeMessage, delivery, make_tracker

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def groups(starts: list[int], size: int) -> list[list[int]]:
    """Offsets of each group, for records that were started so often before (0: never)."""
    tracker = make_tracker()
    aside = [
        (
            delivery(tracker, FakeMessage(b"{}", offset=n)),
            Started(before, THEN, THEN) if before else None,
        )
        for n, before in enumerate(starts)
    ]
    found = []
    while aside:
        group = first_group(aside, size)
        found.append([d.offset for d, _ in group])
        del aside[: len(group)]
    return found


def test_what_died_once_runs_in_groups_of_the_square_root() -> None:
    assert groups([1] * 10, 10) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert groups([1] * 5, 4) == [[0, 1], [2, 3], [4]]
    assert groups([1, 1, 1], 1) == [[0], [1], [2]]


def test_what_died_twice_runs_alone_and_the_order_stays() -> None:
    assert groups([1, 2, 1, 1, 3, 2, 1], 9) == [[0], [1], [2, 3], [4], [5], [6]]


def test_a_record_that_only_belongs_to_a_known_job_is_no_suspect_of_its_own() -> None:
    assert groups([0, 2, 0, 1], 9) == [[0], [1], [2, 3]]
