"""What a person may write after --filter and --rate, and who is said to act."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from streams.cli.dlq_choice import actor, parse_filter, pick
from streams.cli.dlq_redrive import parse_rate
from streams.deadletter.choice import Choice
from streams.errors import BadSetup
from tests.unit.deadletter.fakes import letter

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def test_conditions_of_a_filter_are_joined_by_and() -> None:
    choice = parse_filter('stage=act error="timed out" since=1h before=2026-01-02 flow=mail', NOW)
    assert choice == Choice("mail", "act", "timed out", NOW_MS - 3_600_000, NOW_MS)
    fits = {"message": "Timed OUT after 3 s", "timestamp_ms": NOW_MS - 1}
    assert choice.takes(letter(**fits))
    for other in (
        {"message": "refused"},
        {"timestamp_ms": NOW_MS},
        {"timestamp_ms": NOW_MS - 3_600_001},
        {"topic": "mail.enrich.dlq"},
        {"topic": "sms.act.dlq"},
    ):
        assert not choice.takes(letter(**{**fits, **other})), other


def test_an_error_is_a_kind_or_a_part_of_the_message() -> None:
    assert parse_filter("error=Handler_Failed", NOW).takes(letter())
    assert parse_filter("error=valueerror", NOW).takes(letter())
    assert not parse_filter("error=handler", NOW).takes(letter(message="x"))


@pytest.mark.parametrize(
    ("text", "rate"), [(None, None), ("50/s", 50.0), ("30/m", 0.5), ("36/h", 0.01), ("2.5", 2.5)]
)
def test_a_rate_is_letters_per_second(text: str | None, rate: float | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "0/s", "-1", "fast", "5/d", "1e3", "5/"])
def test_a_rate_that_is_none_is_a_sentence(text: str) -> None:
    with pytest.raises(BadSetup, match="--rate takes"):
        parse_rate(text)


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert actor("anna") == "anna"
    assert actor(None)

    def nameless() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert actor(None).startswith("uid ")


@pytest.mark.parametrize(
    ("ids", "cluster", "text", "says"),
    [
        ([], None, None, "in one way"),
        (["ab"], "cd", None, "in one way"),
        ([], "cd", "stage=x", "in one way"),
        ([], None, "", "every letter there is"),
        ([], None, "stage", "none of them"),
        ([], None, "stage=", "none of them"),
        ([], None, "colour=red", "'colour=red' is none of them"),
        ([], None, "stage=a stage=b", "names stage twice"),
        ([], None, "since=soon", "soon"),
        ([], None, "stage='a", "cannot be read"),
    ],
)
def test_a_choice_that_is_none_is_refused_before_anything_is_read(
    ids: list[str], cluster: str | None, text: str | None, says: str
) -> None:
    nothing: Any = None
    with pytest.raises(BadSetup, match=says):
        pick(nothing, nothing, ids, cluster, text)
