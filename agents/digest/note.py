"""The end of a branch: what `enrich` of the mail flow finds is its result."""

from __future__ import annotations

from agents import language
from agents.enrich import enrich
from schemas.digest import MailNote
from schemas.mail import ClassifiedMail
from streams import Context, Done, stage


@stage("enrich", prepare=language.load)
def note(mail: ClassifiedMail, job: Context) -> Done:
    """Keep what was found without the mail's text: results lie in Postgres until they are read."""
    return Done(MailNote(**dict(enrich(mail, job))))
