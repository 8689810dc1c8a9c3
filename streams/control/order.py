"""An order, as it lies in the control topic. Pure.

Key `job:<traceId>` or `stage:<flow>.<stage>`, value JSON `{"kind", "by", "at", "reason"}`; a null
value takes the order back (the stage goes on; the cancelled job has long been over).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import orjson

from schemas.ids import is_job_id
from schemas.state import JobError

_JOB: Final = "job:"
_STAGE: Final = "stage:"
_TEXT_CHARS: Final = 300

#: The error's kind of a cancelled job's last step.
CANCELLED: Final = "cancelled"


class Kind(StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Order:
    """`target` is a job's id (CANCEL) or `<flow>.<stage>` (PAUSE); `at` is by the clock of whoever
    ordered it."""

    kind: Kind
    target: str
    by: str
    at: datetime
    reason: str = ""

    @property
    def key(self) -> bytes:
        return (job_key if self.kind is Kind.CANCEL else stage_key)(self.target)

    @property
    def value(self) -> bytes:
        return orjson.dumps(
            {
                "kind": self.kind.value,
                "by": _kept(self.by),
                "at": self.at.astimezone(UTC).isoformat(timespec="microseconds"),
                "reason": _kept(self.reason),
            }
        )

    @property
    def said(self) -> str:
        """`by alice since 2026-01-01 10:00:00Z: reason`."""
        moment = self.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        reason = f": {self.reason}" if self.reason else ""
        return f"by {self.by} since {moment}{reason}"

    def error_of(self, job_id: str) -> JobError:
        """What the last step of `job_id` says, the target itself or a descendant of it."""
        moment = self.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        reason = f": {self.reason}" if self.reason else "."
        whose = "" if job_id == self.target else f" with its ancestor {self.target}"
        return JobError(
            kind=CANCELLED, message=f"Cancelled{whose} by {self.by} at {moment}{reason}"
        )


def job_key(job_id: str) -> bytes:
    return f"{_JOB}{job_id}".encode()


def stage_key(stage: str) -> bytes:
    """Of `<flow>.<stage>`."""
    return f"{_STAGE}{stage}".encode()


def target_of(key: bytes | None) -> tuple[Kind, str] | None:
    """What kind of order a key is about, and its target; None for a key that is none of ours."""
    text = (key or b"").decode(errors="replace")
    if text.startswith(_JOB) and is_job_id(text.removeprefix(_JOB)):
        return Kind.CANCEL, text.removeprefix(_JOB)
    if text.startswith(_STAGE):
        return Kind.PAUSE, text.removeprefix(_STAGE)
    return None


def decode(key: bytes | None, value: bytes) -> Order | None:
    """The order that a record spells; None if it is none."""
    about = target_of(key)
    try:
        found: Any = orjson.loads(value)
        at = datetime.fromisoformat(found["at"])
        by, reason, kind = found["by"], found["reason"], found["kind"]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    if about is None or about[0].value != kind or at.tzinfo is None:
        return None
    if not isinstance(by, str) or not isinstance(reason, str):
        return None
    return Order(*about, by, at, reason)


def error_of(key: bytes, value: bytes | None, job_id: str) -> JobError:
    """What `job_id`, which is cancelled by the order that `key` and `value` spell, ends with."""
    order = decode(key, value or b"")
    if order is None:
        return JobError(kind=CANCELLED, message="Cancelled; by whom cannot be read.")
    return order.error_of(job_id)


def _kept(text: str) -> str:
    """Bounded, and without what Postgres or a terminal cannot take."""
    clean = text.encode(errors="backslashreplace").decode().replace("\0", "\\0")
    return clean[:_TEXT_CHARS]
