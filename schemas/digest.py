"""The thread digest on the wire: what is submitted, what a branch finds, what they add up to.

A thread is a job that forks into its mails; conventions are those of `schemas.mail`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from schemas.mail import (
    MAX_SUBJECT_CHARS,
    MAX_URL_CHARS,
    Entities,
    Label,
    Language,
    Mail,
    Priority,
    Short,
    ThreadId,
    Topic,
)

#: As many as one fork may have branches; a record's size bounds long mails earlier.
MAX_THREAD_MAILS = 10_000
#: Entities and open questions that one digest names.
MAX_NAMED = 10


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Thread(_Wire):
    """A thread as it is submitted, its mails in the order in which they were read."""

    CE_TYPE: ClassVar[str] = "thread.submitted.v1"

    thread: ThreadId
    mails: Annotated[tuple[Mail, ...], Field(min_length=1, max_length=MAX_THREAD_MAILS)]


class MailNote(_Wire):
    """The result of one branch: what was found in a mail, without its text."""

    CE_TYPE: ClassVar[str] = "thread.mail.v1"

    id: Short | None = None
    list: Short | None = None
    #: By the sender's own clock, see `Mail.date`.
    date: datetime | None = None
    label: Label
    topic: Topic
    language: Language
    thread: ThreadId
    thread_subject: str = Field(max_length=MAX_SUBJECT_CHARS)
    entities: Entities
    asks: bool
    priority: Priority


class EntityKind(StrEnum):
    URL = "url"
    ADDRESS = "address"
    MONEY = "money"
    PHONE = "phone"


class Named(_Wire):
    """An entity, and how many mails of the thread name it."""

    kind: EntityKind
    #: Money as sign and amount.
    text: Annotated[str, StringConstraints(max_length=MAX_URL_CHARS)]
    mails: int = Field(ge=1)


class Span(_Wire):
    """From when to when mails were written, without those whose clocks are plainly wrong."""

    first: datetime
    last: datetime
    #: Mails whose date is too far from the thread's median to be believed.
    wrong_clocks: int = Field(0, ge=0)


class ThreadDigest(_Wire):
    """What the mails of one thread add up to. The same branches always give the same digest."""

    CE_TYPE: ClassVar[str] = "thread.digest.v1"

    #: Of the first mail that could be read, as `enrich` sees it.
    thread: ThreadId
    subject: str = Field(max_length=MAX_SUBJECT_CHARS)
    mails: int = Field(ge=1)
    #: Mails that are not in the figures: their branches failed, or had not come in time.
    unread: int = Field(ge=0)
    #: Different addresses that the mails name: mails here bring no senders.
    addresses: int = Field(ge=0)
    lists: tuple[Short, ...] = ()
    #: None where no mail has a date.
    span: Span | None = None
    labels: dict[Label, int]
    topics: dict[Topic, int]
    languages: dict[Language, int]
    #: The highest of any mail.
    priority: Priority
    #: In most mails first, `MAX_NAMED` of them.
    named: tuple[Named, ...] = ()
    #: The last mails that ask something and that nobody has answered: the mail's id, or its job's
    #: where it has none; the latest `MAX_NAMED`.
    open_questions: tuple[Short, ...] = ()
