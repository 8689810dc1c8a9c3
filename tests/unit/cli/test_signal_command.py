"""What `handoff signal` says becomes of a signal, and what it takes for a value."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli.signal import Sending, _advice, _parsed
from streams.errors import BadSetup

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
SENDING = Sending(JOB, "mail", "approval", True, "ann", "01")
KEPT = "The signal is kept until it waits for approval."


def run(*waits: str, status: str = "open") -> dict[str, Any]:
    return {"stage": "act", "status": status, "waits": list(waits)}


@pytest.mark.parametrize(
    ("found", "known", "said"),
    [
        (
            run("call score (/3)", "signal approval until 2026-12-03T13:19:45Z"),
            True,
            f"It is what the job waits for at act. Follow it: handoff trace {JOB}",
        ),
        (
            run("signal approval"),
            True,
            f"It is what the job waits for at act. Follow it: handoff trace {JOB}",
        ),
        # Another signal whose name begins so.
        (
            run("signal approval_of_ann", "call score (/3)"),
            True,
            f"At act the job waits for signal approval_of_ann, call score (/3). {KEPT}",
        ),
        (run(), True, f"At act the job waits for nothing. {KEPT}"),
        (
            run("signal approval", status="parked"),
            True,
            f"Its run of act waits for a person: handoff why {JOB}. {KEPT}",
        ),
        ({}, True, f"The job waits for nothing now. {KEPT}"),
        (
            {},
            False,
            f"The job waits for nothing now. {KEPT} No job of flow mail has done so before.",
        ),
    ],
)
def test_what_becomes_of_it_is_said(found: dict[str, Any], known: bool, said: str) -> None:
    assert _advice(SENDING, found, known) == said


@pytest.mark.parametrize("value", ["", "yes", "{'a': 1}", "NaN", "1 2"])
def test_a_value_that_is_no_json_is_told_how_to_be_quoted(value: str) -> None:
    with pytest.raises(BadSetup, match="is no JSON") as caught:
        _parsed(value)
    assert """'{"approved": true}', '"a text"'.""" in caught.value.message


@pytest.mark.parametrize(
    ("value", "found"),
    [("null", None), ("true", True), ('"a"', "a"), ('{"a": [1]}', {"a": [1]}), (" 3 ", 3)],
)
def test_any_json_is_a_value(value: str, found: object) -> None:
    assert _parsed(value) == found
