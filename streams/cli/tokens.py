"""What models cost, in the tables of `handoff jobs show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from schemas.usage import Usage, read_usage, together
from streams.state.views import Hop

COLUMNS: Final = ("model", "tokens in", "out")


def usages(steps: Sequence[Hop]) -> list[Usage | None]:
    """Of each step; None for one that asked no model."""
    return [read_usage(step.usage) for step in steps]


def cells(usage: Usage | None) -> tuple[str, ...]:
    """A step's cells under `COLUMNS`."""
    if usage is None:
        return ("",) * len(COLUMNS)
    names = ", ".join(usage.names) + _cached(usage)
    return names, f"{usage.input_tokens:,}", f"{usage.output_tokens:,}"


def summary(usage: Usage) -> str:
    """`stand-in: 240 in, 18 out, 2 calls`, of a whole job, a line for each model."""
    lines = []
    for each in usage.models:
        calls = f"{each.calls:,} {'call' if each.calls == 1 else 'calls'}"
        tokens = f"{each.input_tokens:,} in, {each.output_tokens:,} out"
        lines.append(f"{each.request_model}: {tokens}, {calls}{_cached(Usage(models=(each,)))}")
    return "\n".join(lines)


def as_json(found: Sequence[Usage | None]) -> dict[str, Any] | None:
    """The sum of a job's steps, as `JobState.usage` spells it, with the tokens of all models."""
    total = together(found)
    if total is None:
        return None
    tokens = {"inputTokens": total.input_tokens, "outputTokens": total.output_tokens}
    return {**tokens, **total.model_dump(mode="json", by_alias=True)}


def _cached(usage: Usage) -> str:
    return f" ({usage.cached:,} cached)" if usage.cached else ""
