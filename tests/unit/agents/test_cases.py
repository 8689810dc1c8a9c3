"""A case, played without a broker: what it calls, when it reminds, how it ends."""

from __future__ import annotations

import ast
import inspect
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import agents
from agents.cases import case, file, flow, note
from schemas.case import Closed, Outcome, Receipt, Slip
from schemas.mail import Action, Mail
from streams import Context, Done, Reject
from streams.testing import Played, RecordedEffects, job_context, play
from tests.unit.agents.mails import mail, sample

README = Path(__file__).parents[3] / "README.md"
GOLDEN = Path(__file__).parents[2] / "golden" / "cases"
TYPES: list[type[BaseModel]] = [Slip, Receipt, Closed]
SPAM = next(Mail(**row) for row in sample() if row["label"] == "spam")


def read(model: Any) -> Done:
    """What becomes of a mail that is handed to `classify` of this flow."""
    return note(agents.classify(model, job_context()), job_context())


def desk(slip: Slip) -> Receipt:
    return Receipt(number="R-1" if slip.kind is Action.REPLY else "T-7")


async def played(given: Mail, *solved: tuple[timedelta, str, Any, str], **answers: Any) -> Played:
    calls = {"classify": read, "file": desk, **answers}
    return await play(case, given, calls=calls, signals=solved)


async def test_spam_is_closed_at_once() -> None:
    run = await played(SPAM)
    assert run.result == Closed(outcome=Outcome.SPAM)
    assert run.commands == ("call classify",)


async def test_a_ticket_and_a_reply_at_once_then_the_answer() -> None:
    run = await played(mail(), (timedelta(hours=3), "solved", "Update apt.", "ann"))
    assert run.result == Closed(
        outcome=Outcome.SOLVED, ticket="T-7", by="ann", answer="Update apt."
    )
    assert run.commands == ("call classify", "call file", "call file", "signal solved")
    ticket, reply = (slip for name, slip in run.called if name == "file")
    assert isinstance(ticket, Slip)
    assert isinstance(reply, Slip)
    assert (ticket.kind, ticket.queue, ticket.text) == (Action.TICKET, "linux", "")
    assert (reply.kind, reply.text[:9]) == (Action.REPLY, "Thank you")
    assert run.elapsed == timedelta(hours=3)


async def test_every_two_days_somebody_is_reminded() -> None:
    run = await played(mail(), (timedelta(days=5), "solved", {"fix": 1}, "ann"))
    assert run.result == Closed(
        outcome=Outcome.SOLVED, ticket="T-7", reminders=2, by="ann", answer="{'fix': 1}"
    )
    assert reasons(run)[2:] == ["reminder 1 of T-7", "reminder 2 of T-7"]


async def test_a_case_that_nobody_solves_is_abandoned_after_six_days() -> None:
    run = await played(mail())
    assert run.result == Closed(outcome=Outcome.ABANDONED, ticket="T-7", reminders=3)
    assert run.elapsed == timedelta(days=6)
    assert reasons(run)[2:] == [f"reminder {n} of T-7" for n in (1, 2, 3)]


async def test_a_sender_who_cannot_be_told_has_no_ticket_either() -> None:
    def no_reply(slip: Slip) -> Receipt | Reject:
        return Reject("no address") if slip.kind is Action.REPLY else desk(slip)

    run = await played(mail(), file=no_reply)
    assert run.result == Closed(outcome=Outcome.WITHDRAWN)
    (withdrawn,) = reasons(run)[2:]
    assert withdrawn.startswith("withdrawn: ")
    assert withdrawn.endswith("/2 failed")


async def test_long_words_fit_the_result() -> None:
    run = await played(mail(), (timedelta(), "solved", "x" * 9_000, "y" * 9_000))
    assert isinstance(run.result, Closed)
    assert (len(run.result.by or ""), len(run.result.answer or "")) == (200, 200)


@pytest.mark.parametrize(("kind", "number"), [(Action.TICKET, "T-1"), (Action.REPLY, "R-1")])
async def test_a_slip_is_one_repeatable_effect(kind: Action, number: str) -> None:
    effects = RecordedEffects(results={kind.value: Receipt(number=number)})
    job: Context = job_context("cases", "file", effects=effects)
    slip = Slip(kind=kind, queue="linux", subject="s", reason="r", thread="00" * 8)  # type: ignore[arg-type]
    assert await file(slip, job) == Done(Receipt(number=number))
    (call,) = effects.calls
    assert (call.name, call.idempotent) == (kind.value, True)
    assert call.args[0] == {"job": job.trace_id, **slip.model_dump(mode="json")}


def test_the_flow_has_the_stages_that_a_case_calls() -> None:
    assert flow.inputs == ("case", "classify", "enrich", "file", "join")
    assert sorted(case.calls) == ["classify", "file"]


@pytest.mark.parametrize("model", TYPES)
def test_a_golden_file_reads_and_writes_as_ever(model: type[BaseModel]) -> None:
    text = (GOLDEN / f"{model.CE_TYPE}.json").read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert json.loads(model.model_validate_json(text).model_dump_json()) == json.loads(text)


def reasons(run: Played) -> list[str]:
    return [slip.reason for _, slip in run.called if isinstance(slip, Slip)]


def test_the_readme_shows_the_case_as_it_is() -> None:
    _, _, rest = README.read_text(encoding="utf-8").partition("<!-- case:begin -->\n```python\n")
    code, end, _ = rest.partition("```\n<!-- case:end -->")
    assert end, "README.md has no block between the case markers"
    function = case.orchestrates
    assert function is not None
    shown, mine = ast.parse(code).body[0], ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(mine, ast.AsyncFunctionDef)
    mine.body = mine.body[1:]  # its docstring
    assert ast.dump(shown) == ast.dump(mine)
