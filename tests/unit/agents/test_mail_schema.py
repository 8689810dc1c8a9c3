"""The mail types on the wire: golden files, round trips, limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from schemas.mail import (
    MAX_BODY_CHARS,
    ClassifiedMail,
    EnrichedMail,
    Filed,
    Mail,
    Money,
)
from tests.unit.agents.mails import sample

GOLDEN = Path(__file__).parents[2] / "golden" / "mail"
TYPES: list[type[BaseModel]] = [Mail, ClassifiedMail, EnrichedMail, Filed]


@pytest.mark.parametrize("model", TYPES)
def test_a_golden_file_reads_and_writes_as_ever(model: type[BaseModel]) -> None:
    text = (GOLDEN / f"{model.CE_TYPE}.json").read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert json.loads(model.model_validate_json(text).model_dump_json()) == json.loads(text)


def test_every_golden_file_has_a_type_and_every_type_a_golden_file() -> None:
    names = {model.CE_TYPE for model in TYPES}  # type: ignore[attr-defined]
    assert {path.name.removesuffix(".json") for path in GOLDEN.iterdir()} == names


def test_every_mail_of_the_sample_survives_a_round_trip() -> None:
    for row in sample():
        mail = Mail.model_validate(row)
        assert Mail.model_validate_json(mail.model_dump_json()) == mail


def test_unknown_fields_are_ignored_and_the_label_is_one() -> None:
    row = next(row for row in sample() if row["label"] == "spam")
    assert set(Mail.model_validate(row).model_dump()) == {
        "id", "list", "date", "subject", "body", "html"
    }  # fmt: skip


def test_a_year_of_the_first_century_is_a_date() -> None:
    text = '{"subject": "", "body": "", "date": "0102-02-02T09:39:51+00:00"}'
    mail = Mail.model_validate_json(text)
    assert mail.date is not None
    assert mail.date.year == 102
    assert Mail.model_validate_json(mail.model_dump_json()) == mail


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_survives_a_round_trip(subject: str, body: str) -> None:
    mail = Mail(subject=subject, body=body)
    assert Mail.model_validate_json(mail.model_dump_json()) == mail


@pytest.mark.parametrize(
    "fields",
    [
        {"subject": "no body"},
        {"subject": "", "body": "x" * (MAX_BODY_CHARS + 1)},
        {"subject": "", "body": "", "date": "yesterday"},
        {"subject": 7, "body": ""},
    ],
)
def test_a_mail_outside_the_schema_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Mail.model_validate(fields)


def test_money_keeps_its_digits() -> None:
    money = Money.model_validate_json('{"amount": "329.10", "currency": "$"}')
    assert money.model_dump_json() == '{"amount":"329.10","currency":"$"}'
