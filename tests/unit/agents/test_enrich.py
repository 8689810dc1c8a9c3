"""`enrich`: language, threads, entities, priority."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import enrich
from agents.entities import READ_CHARS, entities_in
from agents.language import UNKNOWN, language_of
from agents.priority import asks_something, level, own_words
from agents.threads import thread_of, thread_subject
from schemas.mail import MAX_ENTITIES, Label, Priority, Topic
from streams.testing import job_context
from tests.unit.agents.mails import classified

MARKS = [
    "Re:",
    "RE[2]:",
    "re(3) :",
    "Fwd:",
    "FW:",
    "Re: Re:",
    "[ILUG]",
    "Re: [SAtalk] Re:",
    "AW: Fwd:",
]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The quick brown fox jumps over the lazy dog, and nobody minds at all.", "en"),
        ("Wir haben uns schon lange nicht mehr gesehen, wie geht es dir heute?", "de"),
        ("Bonjour à tous, je voudrais savoir si quelqu'un peut m'aider demain.", "fr"),
        ("ok", UNKNOWN),
        ("", UNKNOWN),
        ("http://example.org/a/very/long/address/that/is/no/language/at/all", UNKNOWN),
    ],
)
def test_language_is_told_or_left_open(text: str, code: str) -> None:
    assert language_of(text) == code


@pytest.mark.parametrize(
    "subject",
    [
        "Apt problems",
        "Re: Apt problems",
        "RE: [ILUG] Re[2]: apt  problems",
        "Fwd: AW: Apt problems (fwd)",
        "[ILUG] apt problems (was: Ximian apt repos?)",
    ],
)
def test_a_reply_is_in_the_thread_of_its_mail(subject: str) -> None:
    assert thread_of(subject, "any body") == thread_of("apt problems", "another")


@pytest.mark.parametrize(
    ("one", "other"), [("apt problems", "apt"), ("Reading", "ading"), ("[ILUG]", "[IIU]")]
)
def test_other_subjects_are_other_threads(one: str, other: str) -> None:
    assert thread_of(one, "") != thread_of(other, "")


def test_mails_without_a_subject_are_apart() -> None:
    assert thread_of("", "one") != thread_of("", "another")
    assert thread_of("Re: ", "one") == thread_of("re:", "one")


@given(st.text(alphabet="abcXYZ 019!", min_size=1).filter(str.strip), st.sampled_from(MARKS))
def test_marks_before_a_subject_never_change_its_thread(subject: str, mark: str) -> None:
    assert thread_of(f"{mark} {subject}", "a") == thread_of(subject, "b")
    assert thread_subject(thread_subject(subject)) == thread_subject(subject)


def test_entities_are_found_once_each_in_order() -> None:
    found = entities_in(
        "See http://b.example.org/x?y=1, then (http://a.example.org). Again: http://a.example.org\n"
        "Write to Joe.Blow@Example.org or call (212) 555-0123, 212-555-0123 or +49 30 123456.\n"
        "It costs $1,299.50, that is 20 dollars or US$20 million more than £99."
    )
    assert found.urls == ("http://b.example.org/x?y=1", "http://a.example.org")
    assert found.addresses == ("joe.blow@example.org",)
    assert found.phones == ("+12125550123", "+4930123456")
    assert [(m.amount, m.currency) for m in found.money] == [
        (Decimal("1299.50"), "$"),
        (Decimal(20), "$"),
        (Decimal(20_000_000), "US$"),
        (Decimal(99), "£"),
    ]


def test_what_looks_like_an_entity_and_is_none_is_left_out() -> None:
    found = entities_in(
        "[number] $[number] 3.2.1-14 2002-09-30 08:01 user@host $1,234,56 999-999-9999"
    )
    assert found == entities_in("")


def test_entities_are_bounded_in_count_and_reach() -> None:
    many = " ".join(f"http://example.org/{n} ${n}.00 u{n}@example.org" for n in range(1, 60))
    found = entities_in(many)
    assert len(found.urls) == len(found.addresses) == len(found.money) == MAX_ENTITIES
    assert entities_in("x" * READ_CHARS + " http://example.org/") == entities_in("")


@pytest.mark.parametrize("text", ["@" * 8000, "a." * 4000, "$1" * 4000, "+1 " * 2700, "1 " * 4000])
def test_hostile_text_yields_no_more_than_the_bounds(text: str) -> None:
    found = entities_in(text)
    assert all(len(kind) <= MAX_ENTITIES for kind in (found.urls, found.money, found.phones))


def test_a_quoted_question_is_not_the_senders() -> None:
    assert not asks_something(own_words("> Does it work?\n\nYes, it does.\n-- \nWhat is truth?"))
    assert asks_something(own_words("> Yes.\n\nDoes it work for you, too?\n"))
    assert not asks_something(own_words("See http://example.org/?q=1 for more"))


@pytest.mark.parametrize(
    ("over", "priority", "reasons"),
    [
        ({"body": "Thanks, that did it."}, Priority.LOW, ()),
        ({"body": "Which one is it?"}, Priority.NORMAL, ("asks a question",)),
        (
            {"body": "It crashes at once. Any idea?"},
            Priority.HIGH,
            ("asks a question", "asks for help", "reports trouble"),
        ),
        ({"body": "Which one?", "label": Label.SPAM}, Priority.LOW, ("spam", "asks a question")),
        ({"body": "Patch.", "topic": Topic.SECURITY}, Priority.NORMAL, ("about security",)),
        (
            {"body": "URL: http://example.org/\n\nWill it rain?"},
            Priority.LOW,
            ("bulk mail", "asks a question"),
        ),
    ],
)
def test_priority_is_read_off_the_table(
    over: dict[str, object], priority: Priority, reasons: tuple[str, ...]
) -> None:
    result = enrich(classified(subject="apt", **over), job_context())
    assert (result.priority, result.priority_reasons) == (priority, reasons)
    assert level(result.priority_points) is priority


def test_enriching_twice_gives_the_same_and_keeps_the_mail() -> None:
    given = classified(body="Does http://example.org/ cost $5?", list="ilug")
    one, two = enrich(given, job_context()), enrich(given, job_context())
    assert one == two
    assert {name: getattr(one, name) for name in type(given).model_fields} == dict(given)
