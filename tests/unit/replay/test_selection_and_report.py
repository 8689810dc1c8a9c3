"""What a person writes, and what a report counts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from schemas.state import Status
from streams.cli.replay_choice import parse_bound, parse_jobs
from streams.errors import BadSetup
from streams.replay.report import Report
from streams.replay.selection import Bound, OfJobs
from streams.replay.verdict import Judged, Verdict

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def when(text: str) -> datetime:
    assert text == "2h"
    return NOW


def test_digits_are_an_offset_and_anything_else_a_time() -> None:
    assert parse_bound(None, when) is None
    assert parse_bound("120", when) == Bound(offset=120)
    assert parse_bound("2h", when) == Bound(at_ms=int(NOW.timestamp() * 1000))


def test_a_filter_names_each_field_once() -> None:
    assert parse_jobs("status=failed stage=act since=2h", when) == OfJobs(
        Status.FAILED, "act", None, NOW
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "every job there is"),
        ("state=x", "'state=x' is none of them"),
        ("stage=", "'stage=' is none of them"),
        ("stage=a stage=b", "names stage twice"),
        ("status=lost", "a status is one of running, waiting"),
        ("stage='a", "cannot be read"),
    ],
)
def test_what_is_no_filter_is_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(BadSetup, match=said):
        parse_jobs(text, when)


def judged(verdict: Verdict, kind: str = "") -> Judged:
    return Judged("j", 1, "read", "notes.read[0]@1", verdict, kind)


@pytest.mark.parametrize(
    ("verdicts", "remarks", "same"),
    [
        ([], [], False),
        ([Verdict.SAME], [], True),
        ([Verdict.SAME, Verdict.SKIPPED], [], True),
        ([Verdict.SKIPPED], [], False),
        ([Verdict.SAME, Verdict.CHANGED], [], False),
        ([Verdict.SAME, Verdict.NEW_EFFECT], [], False),
        ([Verdict.SAME, Verdict.FAILED], [], False),
        ([Verdict.SAME, Verdict.UNKNOWN], [], False),
        ([Verdict.SAME], ["Offsets 0 to 3 have expired."], False),
    ],
)
def test_all_is_the_same_only_if_all_was_compared(
    verdicts: list[Verdict], remarks: list[str], same: bool
) -> None:
    report = Report(remarks=remarks)
    report.add(map(judged, verdicts))
    assert report.all_same is same
    assert report.as_json()["all_same"] is same


def test_kinds_are_counted_in_full_and_shown_by_a_few_examples() -> None:
    report = Report(examples=2)
    report.add([judged(Verdict.CHANGED, "data.a")] * 5 + [judged(Verdict.FAILED, "x")])
    report.add([judged(Verdict.CHANGED, "data.b")] * 7 + [judged(Verdict.SAME)] * 3)
    assert [(g.kind, g.count, len(g.examples)) for g in report.ordered()] == [
        ("data.b", 7, 2),
        ("data.a", 5, 2),
        ("x", 1, 1),
    ]
    assert len(report.named) == 13
    assert report.line().startswith("16 records: 3 same, 12 changed, 1 failed")
