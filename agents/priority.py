"""How soon a person should see a mail: points that can be read off a table, and the reasons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemas.mail import ClassifiedMail, Label, Priority, Topic

HIGH_FROM: Final = 4
NORMAL_FROM: Final = 1
_READ_CHARS: Final = 4_000

_QUOTED = re.compile(r"^[ \t]*[>|].*$", re.MULTILINE)
# Behind the signature mark or a list's rule line nobody speaks for themselves.
_FOOTER = re.compile(r"^(?:-- ?|_{20,}|-{30,}.*)$", re.MULTILINE)
_LINK = re.compile(r"(?<!^URL: )https?://\S+", re.MULTILINE)
_ASKS = re.compile(r"\w['\")]?\s?\?(?=\s|$)")
_URGENT = re.compile(
    r"\b(?:urgent(?:ly)?|asap|emergency|critical|immediately|deadline|production)\b", re.I
)
_TROUBLE = re.compile(
    r"\b(?:problem|fail(?:s|ed|ure|ing)?|error|broken|crash(?:es|ed|ing)?|bug|won't|doesn't work"
    r"|not working|cannot|can't)\b",
    re.I,
)
_HELP = re.compile(
    r"\b(?:help|advice|any (?:idea|clue|pointer|suggestion)s?|how (?:do|can) i)\b", re.I
)
_BULK = re.compile(
    r"\b(?:unsubscribe|newsletter|this (?:mailing|is an automated)|your (?:daily|weekly))\b"
    r"|^URL: http",
    re.I | re.M,
)


def own_words(body: str) -> str:
    """The sender's words: without quotations, links, and what follows the signature mark."""
    text = _QUOTED.sub("", body[:_READ_CHARS])
    footer = _FOOTER.search(text)
    return _LINK.sub("", text[: footer.start()] if footer else text)


def asks_something(own: str) -> bool:
    """Whether there is a question in the sender's own words."""
    return _ASKS.search(own) is not None


@dataclass(frozen=True, slots=True)
class _Said:
    mail: ClassifiedMail
    subject: str
    own: str

    def has(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.subject) is not None or pattern.search(self.own) is not None


#: Points, their reason, and when they are given.
RULES: Final[tuple[tuple[int, str, Callable[[_Said], bool]], ...]] = (
    (-5, "spam", lambda said: said.mail.label is Label.SPAM),
    (-4, "bulk mail", lambda said: said.has(_BULK)),
    (-1, "news", lambda said: said.mail.topic is Topic.NEWS),
    (2, "asks a question", lambda said: asks_something(said.own)),
    (2, "asks for help", lambda said: said.has(_HELP)),
    (2, "reports trouble", lambda said: said.has(_TROUBLE)),
    (2, "about security", lambda said: said.mail.topic is Topic.SECURITY),
    (2, "about a bill", lambda said: said.mail.topic is Topic.BILLING),
    (3, "says it is urgent", lambda said: said.has(_URGENT)),
)


def points_of(mail: ClassifiedMail, own: str) -> tuple[int, tuple[str, ...]]:
    """The sum of the rules that apply, and their reasons in the table's order."""
    said = _Said(mail, mail.subject, own)
    given = [(points, reason) for points, reason, applies in RULES if applies(said)]
    return sum(points for points, _ in given), tuple(reason for _, reason in given)


def level(points: int) -> Priority:
    if points >= HIGH_FROM:
        return Priority.HIGH
    return Priority.NORMAL if points >= NORMAL_FROM else Priority.LOW
