"""Stage 1: spam or ham from subject and body alone, and a topic."""

from __future__ import annotations

from agents import spam_model
from agents.topics import topic_of
from schemas.mail import ClassifiedMail, Label, Mail
from streams import Context, stage

#: Above this probability a mail is spam.
SPAM_FROM = 0.5


def load_model() -> None:
    spam_model.shipped()


@stage("classify", emits="enrich", prepare=load_model)
def classify(mail: Mail, job: Context) -> ClassifiedMail:
    """Add label, probability of spam and topic. Looks at nothing but `subject` and `body`."""
    score = spam_model.shipped().score(mail.subject, mail.body)
    return ClassifiedMail(
        **dict(mail),
        label=Label.SPAM if score >= SPAM_FROM else Label.HAM,
        spam_score=score,
        topic=topic_of(mail.subject, mail.body),
    )
