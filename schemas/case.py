"""Cases on the wire: what is filed at the desk for one, and how it ends.

A case begins with a `schemas.mail.Mail`; conventions are those of `schemas.mail`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.mail import MAX_SUBJECT_CHARS, Action, Short, ThreadId


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Slip(_Wire):
    """Something to file at the desk: a ticket, or a reply with a `text`."""

    CE_TYPE: ClassVar[str] = "case.slip.v1"

    kind: Literal[Action.TICKET, Action.REPLY] = Action.TICKET
    queue: Short
    subject: str = Field(max_length=MAX_SUBJECT_CHARS)
    reason: Short
    text: Short = ""
    thread: ThreadId


class Receipt(_Wire):
    """The desk's number for it."""

    CE_TYPE: ClassVar[str] = "case.receipt.v1"

    number: Short


class Outcome(StrEnum):
    """How a case ends."""

    SPAM = "spam"
    SOLVED = "solved"
    #: The sender could not be told, so the ticket was withdrawn.
    WITHDRAWN = "withdrawn"
    #: Nobody solved it, whoever was reminded.
    ABANDONED = "abandoned"


class Closed(_Wire):
    """The end of a case."""

    CE_TYPE: ClassVar[str] = "case.closed.v1"

    outcome: Outcome
    #: The ticket, and how often its desk was reminded.
    ticket: Short | None = None
    reminders: int = 0
    #: Who solved it, and what they said.
    by: Short | None = None
    answer: Short | None = None
