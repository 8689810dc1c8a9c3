"""The mail flow on the wire: what is submitted, and what each stage makes of it.

Field names are those of the sample (snake case). Unknown fields are ignored, so a sender may add
its own; nothing downstream sees them. Limits keep every record well under a topic's message size.
`CE_TYPE` is the CloudEvents type; a change that old readers cannot take gets a new version, and the
golden files of old versions stay (tests/golden/mail).
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    model_validator,
)

MAX_SUBJECT_CHARS = 1_000
MAX_BODY_CHARS = 200_000
#: Entities of one kind that are kept from one mail.
MAX_ENTITIES = 20
MAX_URL_CHARS = 500

Short = Annotated[str, StringConstraints(max_length=200)]
ThreadId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,8}$")]


class Label(StrEnum):
    SPAM = "spam"
    HAM = "ham"


class Topic(StrEnum):
    """What a mail is about, by the rules in `agents.topics`."""

    SCAM = "scam"
    ADULT = "adult"
    HEALTH = "health"
    FINANCE = "finance"
    JOBS = "jobs"
    SHOPPING = "shopping"
    BILLING = "billing"
    SECURITY = "security"
    FILTERING = "filtering"
    LINUX = "linux"
    CODE = "code"
    NEWS = "news"
    OTHER = "other"


class Priority(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class Action(StrEnum):
    """What `act` did with a mail."""

    ARCHIVED = "archived"
    TICKET = "ticket"
    REPLY = "reply"


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Mail(_Wire):
    """One mail as it is submitted; only subject and body are needed."""

    CE_TYPE: ClassVar[str] = "mail.submitted.v1"

    id: Short | None = None
    #: The mailing list that carried it.
    list: Short | None = None
    #: By the sender's own clock: years like 0102 and 2028 occur. Never order mails by it.
    date: datetime | None = None
    subject: str = Field(max_length=MAX_SUBJECT_CHARS)
    body: str = Field(max_length=MAX_BODY_CHARS)
    #: Whether the body was HTML before its text was taken; leftovers of tags may remain.
    html: bool = False


class ClassifiedMail(Mail):
    """A mail with the verdict of `classify`."""

    CE_TYPE: ClassVar[str] = "mail.classified.v1"

    label: Label
    #: Probability of spam by the model.
    spam_score: float = Field(ge=0, le=1)
    topic: Topic


class Money(_Wire):
    """An amount as the mail states it; `currency` is its sign or code, not normalised."""

    amount: Decimal = Field(ge=0, max_digits=18, decimal_places=4)
    currency: Annotated[str, StringConstraints(min_length=1, max_length=8)]


class Entities(_Wire):
    """What a mail mentions: without repeats, in order of appearance, `MAX_ENTITIES` of each."""

    urls: tuple[Annotated[str, StringConstraints(max_length=MAX_URL_CHARS)], ...] = ()
    addresses: tuple[Annotated[str, StringConstraints(max_length=320)], ...] = ()
    money: tuple[Money, ...] = ()
    #: E.164.
    phones: tuple[Annotated[str, StringConstraints(pattern=r"^\+[0-9]{4,18}$")], ...] = ()


class EnrichedMail(ClassifiedMail):
    """A classified mail with what `enrich` found in it."""

    CE_TYPE: ClassVar[str] = "mail.enriched.v1"

    #: ISO 639 code; `und` where the text is too short or unclear, `zxx` where it is no language.
    language: Language
    #: Equal for mails of one conversation: a digest of `thread_subject`.
    thread: ThreadId
    #: The subject without reply marks and list tags.
    thread_subject: str = Field(max_length=MAX_SUBJECT_CHARS)
    entities: Entities
    #: Whether the sender asks something in their own, unquoted words.
    asks: bool
    priority: Priority
    priority_points: int
    #: What the points were given for.
    priority_reasons: tuple[Short, ...] = ()


class Approval(_Wire):
    """What a person says to a reply that waits: the value of the signal `approval`. Nothing but
    `true` or `false` is one, too."""

    approved: StrictBool
    reason: Annotated[str, StringConstraints(max_length=80)] = ""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"approved": value} if isinstance(value, bool) else value


class Filed(_Wire):
    """The end of a mail: what was done, why, and where to find it at the desk."""

    CE_TYPE: ClassVar[str] = "mail.filed.v1"

    action: Action
    reason: Short
    #: The desk's queue; None where nothing was filed.
    queue: Short | None = None
    #: The desk's number; None where nothing was filed.
    number: Short | None = None
    label: Label
    topic: Topic
    priority: Priority
    thread: ThreadId
