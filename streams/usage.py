"""Counting what models cost, run after run. Pure."""

from __future__ import annotations

from typing import Final

from schemas.usage import MAX_COUNT, ModelUsage, Usage

_NAME_CHARS: Final = 200


class Tally:
    """Adds up what the runs of one delivery have spent, by operation and model."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str | None], ModelUsage] = {}

    def count(
        self,
        operation: str,
        request_model: str,
        response_model: str | None,
        input_tokens: int,
        output_tokens: int,
        *,
        cached: bool,
    ) -> None:
        """One answer more. Takes what a server may say: numbers and names are cut to what can be
        written."""
        asked, answered = _name(request_model), response_model and _name(response_model)
        key = (_name(operation), asked, answered or None)
        known = self._found.get(key) or ModelUsage(
            operation=key[0], request_model=asked, response_model=key[2]
        )
        more = {
            "calls": 0 if cached else 1,
            "cached": 1 if cached else 0,
            "input_tokens": 0 if cached else input_tokens,
            "output_tokens": 0 if cached else output_tokens,
        }
        self._found[key] = known.model_copy(
            update={k: min(MAX_COUNT, getattr(known, k) + max(0, n)) for k, n in more.items()}
        )

    @property
    def usage(self) -> Usage:
        return Usage(models=tuple(self._found.values()))

    def to_json(self) -> bytes:
        """As `JobState.usage`."""
        return self.usage.model_dump_json(by_alias=True).encode()


def _name(text: str) -> str:
    # A name comes from a server: bounded, and without halves of surrogate pairs.
    return text[:_NAME_CHARS].encode(errors="backslashreplace").decode()[:_NAME_CHARS]
