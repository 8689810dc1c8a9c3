"""Stage 2: language, thread, entities and priority; the libraries bring their data with them."""

from __future__ import annotations

from agents import language
from agents.entities import entities_in
from agents.priority import asks_something, level, own_words, points_of
from agents.threads import thread_of, thread_subject
from schemas.mail import ClassifiedMail, EnrichedMail
from streams import Context, stage


@stage("enrich", emits="act", prepare=language.load)
def enrich(mail: ClassifiedMail, job: Context) -> EnrichedMail:
    """Add what can be read from the text itself; the same mail always gives the same answer."""
    own = own_words(mail.body)
    points, reasons = points_of(mail, own)
    return EnrichedMail(
        **dict(mail),
        language=language.language_of(f"{mail.subject}\n{own}"),
        thread=thread_of(mail.subject, mail.body),
        thread_subject=thread_subject(mail.subject),
        entities=entities_in(f"{mail.subject}\n{mail.body}"),
        asks=asks_something(own),
        priority=level(points),
        priority_points=points,
        priority_reasons=reasons,
    )
