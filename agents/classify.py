"""Stage 1: spam or ham from subject and body alone, and a topic.

By the linear model that ships, or, where the environment names one (`HANDOFF_MODEL_NAME`) when this
is imported, by a language model: see `agents.verdict`.
"""

from __future__ import annotations

from typing import Any

from agents import spam_model, verdict
from agents.topics import topic_of
from schemas.mail import ClassifiedMail, Label, Mail
from streams import Context, Stage, stage
from streams.models import is_named

#: Above this probability a mail is spam.
SPAM_FROM = 0.5


def load_model() -> None:
    spam_model.shipped()


@stage("classify", emits="enrich", prepare=load_model)
def by_weights(mail: Mail, job: Context) -> ClassifiedMail:
    """Add label, probability of spam and topic. Looks at nothing but `subject` and `body`."""
    score = spam_model.shipped().score(mail.subject, mail.body)
    return ClassifiedMail(
        **dict(mail),
        label=Label.SPAM if score >= SPAM_FROM else Label.HAM,
        spam_score=score,
        topic=topic_of(mail.subject, mail.body),
    )


@stage("classify", emits="enrich", prepare=verdict.load)
async def by_asking(mail: Mail, job: Context) -> ClassifiedMail:
    """The same, but label and probability are a language model's."""
    found = await verdict.of(mail, job)
    return ClassifiedMail(
        **dict(mail),
        label=found.label,
        spam_score=found.spam_score,
        topic=topic_of(mail.subject, mail.body),
    )


classify: Stage[Mail, Any] = by_asking if is_named() else by_weights
