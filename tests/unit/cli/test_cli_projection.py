"""What `handoff projection` prints, and what it says when it breaks off."""

from __future__ import annotations

import json

import pytest

from streams.cli.projection import Differences, as_json, remains
from streams.state.difference import Difference
from streams.state.rebuild import Standing
from streams.state.shadow import Tally
from tests.unit.state.test_difference import JOB


def test_an_interrupt_says_what_remains() -> None:
    assert "jobs is as it was" in remains(Standing(built=True))
    assert "jobs_rebuild may remain" in remains(Standing(built=True))
    assert "projection verify` tells" in remains(Standing(built=True, in_doubt=True))


def test_all_differences_are_one_json_document_behind_the_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [Difference(f"{n:032x}", "data", {"big": 2**80}, None) for n in range(50)]
    with Differences() as differences:
        for each in found:
            differences.add(each)
        differences.print_json(Tally(jobs=60, altered=50), "different")
    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["equal"], said["jobs"]) == ("different", False, 60)
    assert said["differences"] == [as_json(each) for each in found]


def test_no_difference_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    with Differences() as differences:
        differences.show()
        differences.print_json(Tally(), "equal")
    assert json.loads(capsys.readouterr().out)["differences"] == []


def test_people_see_the_first_differences_short_and_the_number_of_each_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Differences() as differences:
        differences.add(Difference("a" * 32, "job", JOB, None))
        for n in range(30):
            differences.add(Difference(f"{n:032x}", "data", "x" * 900, None))
        differences.show()
    said = capsys.readouterr().out
    assert "act, done, seq 3" in said
    assert "Differences: data 30, job 1. -o json has all." in said
    assert ("x" * 80 + "…" in said, "x" * 81 in said) == (True, False)
    assert (f"{18:032x}" in said, f"{19:032x}" in said) == (True, False)
