"""`classify`: the shipped model on mail it has not seen, and what it may look at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agents import classify, spam_model
from agents.topics import topic_of
from agents.training.train import MIN_ACCURACY, MIN_MACRO_F1, evaluate
from schemas.mail import Label, Mail, Topic
from streams.testing import job_context
from tests.unit.agents.mails import mail, sample

SPAM = "CLICK HERE!!! Make $5,000 a week from home, 100% GUARANTEED. To be removed, reply REMOVE."
HAM = "> I still get the error after apt-get update.\n\nTry removing the old kernel package first."


def test_the_shipped_weights_keep_their_figures_on_held_out_mail() -> None:
    held_out = [row for row in sample() if row["held_out"]]
    figures = evaluate(spam_model.shipped(), held_out)
    assert figures.mails >= 200
    assert {row["label"] for row in held_out} == {"spam", "ham"}
    assert figures.accuracy >= MIN_ACCURACY
    assert figures.macro_f1 >= MIN_MACRO_F1


@pytest.mark.parametrize(("body", "label"), [(SPAM, Label.SPAM), (HAM, Label.HAM)])
def test_plain_cases_get_the_plain_label(body: str, label: Label) -> None:
    result = classify(mail(subject="hello", body=body), job_context())
    assert result.label is label
    assert (result.spam_score >= 0.5) == (label is Label.SPAM)


def test_only_subject_and_body_count() -> None:
    one = mail(body=SPAM)
    other = mail(body=SPAM, list="ilug", id="x", html=True, date="2002-01-01T00:00:00Z")
    a, b = (classify(each, job_context()) for each in (one, other))
    assert (a.label, a.spam_score, a.topic) == (b.label, b.spam_score, b.topic)


def test_the_mail_itself_is_handed_on_unchanged() -> None:
    given = mail(list="ilug", id="x")
    assert Mail.model_validate(classify(given, job_context()).model_dump()) == given


@pytest.mark.parametrize("body", ["", " \n", "\x00", "\ud800", "é" * 10_000])
def test_odd_bodies_get_a_score(body: str) -> None:
    assert 0 <= spam_model.shipped().score("", body) <= 1


def test_features_are_the_same_in_a_process_with_another_hash_seed() -> None:
    code = (
        "from agents.spam_model import features;"
        "print(features('Hello 42', 'Grüße, dear friend!').tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=True,
    )
    here = spam_model.features("Hello 42", "Grüße, dear friend!").tolist()
    assert done.stdout.strip() == str(here)


def test_words_of_the_subject_are_features_of_their_own() -> None:
    assert not np.array_equal(spam_model.features("offer", ""), spam_model.features("", "offer"))


def test_digits_count_but_do_not_matter() -> None:
    one, other = spam_model.features("", "win 99 now"), spam_model.features("", "win 12 now")
    assert np.array_equal(one, other)
    assert not np.array_equal(one, spam_model.features("", "win 123 now"))


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    spam_model.SpamModel(np.zeros(8, dtype=np.int8), 1.0, 0.0).save(path)
    with pytest.raises(ValueError, match="Train the model again"):
        spam_model.load(path)


@pytest.mark.parametrize(
    ("subject", "body", "topic"),
    [
        ("Dear friend", "I am the next of kin of a deceased beneficiary in Lagos", Topic.SCAM),
        ("Refinance now", "Low mortgage rates, all lenders compete", Topic.FINANCE),
        ("[ILUG] apt", "After the kernel rpm was installed on redhat", Topic.LINUX),
        ("razor", "a false positive in spamassassin", Topic.FILTERING),
        ("Lunch?", "At one, same place.", Topic.OTHER),
    ],
)
def test_topics_follow_their_words(subject: str, body: str, topic: Topic) -> None:
    assert topic_of(subject, body) is topic
