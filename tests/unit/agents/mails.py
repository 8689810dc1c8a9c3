"""Mails that tests start from, and the held-out part of the shipped sample."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import infra.demo
from agents.training.corpus import Row, read
from schemas.mail import ClassifiedMail, EnrichedMail, Entities, Label, Mail, Priority, Topic

SAMPLE = Path(infra.demo.__file__).with_name("mail.jsonl.gz")


@cache
def sample() -> list[Row]:
    return read(SAMPLE)


def mail(**over: Any) -> Mail:
    return Mail(**{"subject": "Re: [ILUG] Apt problems", "body": "Does apt work for you?", **over})


def classified(**over: Any) -> ClassifiedMail:
    given = {"label": Label.HAM, "spam_score": 0.1, "topic": Topic.LINUX}
    return ClassifiedMail(**{**dict(mail()), **given, **over})


def enriched(**over: Any) -> EnrichedMail:
    given = {
        "language": "en",
        "thread": "00" * 8,
        "thread_subject": "apt problems",
        "entities": Entities(),
        "asks": False,
        "priority": Priority.LOW,
        "priority_points": 0,
    }
    return EnrichedMail(**{**dict(classified()), **given, **over})
