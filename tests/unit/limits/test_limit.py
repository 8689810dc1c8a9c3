"""Goal: a limit that makes no sense is refused where it is declared; keys are texts or nothing.

Method: declarations and their sentences.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from streams import BadRecord, BadSetup, Context, Done, Flow, Fork, Joined, Limit, stage


class Mail(BaseModel):
    tenant: Any = "a"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "limits nothing"),
        ({"rate": 0}, "rate must be at least 1"),
        ({"rate": 1_001}, "at most 1,000 in a second, not 1,001 per 0:00:01"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"rate": 1, "per": timedelta(milliseconds=999)}, "between a second and a day"),
        ({"rate": 1, "per": timedelta(days=2)}, "between a second and a day"),
        ({"name": "Model X", "rate": 1}, "a lower-case identifier"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSetup, match=sentence):
        Limit(**{"name": "model", **values})


def test_a_name_stands_once_in_a_stage_and_means_one_thing_in_a_flow() -> None:
    one, other = Limit("model", rate=20), Limit("model", rate=10, concurrency=2)
    with pytest.raises(BadSetup, match="names the limit model twice"):

        @stage("classify", limits=(one, one))
        def twice(mail: Mail, _: Context) -> Done:
            return Done()

    @stage("classify", emits="act", limits=one)
    def classify(mail: Mail, _: Context) -> Mail:
        return mail

    @stage("act", limits=(other,))
    def act(mail: Mail, _: Context) -> Done:
        return Done()

    said = (
        r"stages classify and act share the limit model \(20 per second\), but in act it is the "
        r"limit model \(10 per second, 2 at once\)"
    )
    with pytest.raises(BadSetup, match=said):
        Flow("mail", (classify, act))

    @stage("act", limits=Limit("model", rate=20, key=lambda mail: mail.tenant))
    def keyed(mail: Mail, _: Context) -> Done:
        return Done()

    # Each takes its key from a model of its own.
    assert Flow("mail", (classify, keyed)).stage("act").limits[0].rate == 20


def test_a_stage_that_reads_a_join_can_take_no_key() -> None:
    with pytest.raises(BadSetup, match="reads a join"):

        @stage("merge", limits=Limit("model", rate=1, key=lambda joined: "a"))
        async def merge(mails: Joined[Mail], _: Context) -> Done:
            return Done()

    @stage("split", emits="act", joins="merge", limits=Limit("model", rate=1))
    def split(mail: Mail, _: Context) -> Fork:
        return Fork((), join="merge")

    assert split.limits[0].key_of(Mail()) == ""


@pytest.mark.parametrize(
    ("tenant", "sentence"),
    [
        (7, "this is int"),
        ("x" * 201, "this is one of 201 characters"),
        ("a\0b", "without NUL"),
        ("half \ud800", "cannot use its key"),
        (KeyError("secret"), "its key function raised KeyError"),
    ],
)
def test_a_record_without_a_usable_key_is_bad_and_its_values_are_not_told(
    tenant: Any, sentence: str
) -> None:
    def key(mail: Mail) -> Any:
        if isinstance(mail.tenant, Exception):
            raise mail.tenant
        return mail.tenant

    with pytest.raises(BadRecord, match=sentence) as caught:
        Limit("tenant", rate=1, key=key).key_of(Mail(tenant=tenant))
    assert "secret" not in caught.value.message


def test_a_key_of_none_is_no_limit() -> None:
    limit = Limit("tenant", rate=1, key=lambda mail: mail.tenant)
    assert limit.key_of(Mail(tenant=None)) is None
    assert limit.key_of(Mail(tenant="")) == ""
