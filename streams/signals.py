"""`Signal`: what somebody sent to a job. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, TypeAdapter

from streams.errors import BadRecord

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Signal:
    """What was sent to a job: its `name`, JSON `value`, who sent it and when (UTC).

    `timed_out`: nothing came in time, and the rest says nothing.
    """

    name: str
    value: Any = None
    by: str = ""
    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    timed_out: bool = False

    def parse(self, model: type[M]) -> M:
        """The value as a `model`. Raises pydantic's `ValidationError`."""
        return TypeAdapter(model).validate_python(self.value)

    def to_json(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> Signal:
        """What `to_json` made. Raises `BadRecord`."""
        try:
            found = orjson.loads(data)
            at = datetime.fromisoformat(found["at"]).astimezone(UTC)
            return cls(
                str(found["name"]),
                found.get("value"),
                str(found.get("by", "")),
                at,
                bool(found.get("timed_out")),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as e:
            raise BadRecord(f"It is no signal: {e!r}.") from None
