"""`JobState.usage`: what the models cost that a step has asked.

The names are ours and stay; OpenTelemetry's, which may change with any release, are those of
`streams.tracing.conventions`. Counts are of the runs of one delivery, added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

#: What JSON readers keep exactly, and sums of which fit into 64 bits.
MAX_COUNT: Final = 2**53

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class _Wire(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )


class ModelUsage(_Wire):
    """One model, asked for one operation: `calls` answered by it, at these tokens, and `cached`
    answers from the ledger, at none."""

    operation: str = "chat"
    request_model: str
    #: What the server says that it was; None where it says nothing, or was not asked.
    response_model: str | None = None
    calls: _Count = 0
    cached: _Count = 0
    input_tokens: _Count = 0
    output_tokens: _Count = 0


_COUNTS: Final = ("calls", "cached", "input_tokens", "output_tokens")


class Usage(_Wire):
    """All models of one step, or of several."""

    models: tuple[ModelUsage, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The models, as they were asked for, each once."""
        return tuple(dict.fromkeys(each.request_model for each in self.models))

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.models)

    @property
    def cached(self) -> int:
        return sum(each.cached for each in self.models)

    @property
    def input_tokens(self) -> int:
        return sum(each.input_tokens for each in self.models)

    @property
    def output_tokens(self) -> int:
        return sum(each.output_tokens for each in self.models)


def together(usages: Iterable[Usage | None]) -> Usage | None:
    """The sum of several steps, by operation and model; None where no model was asked."""
    found: dict[tuple[str, str, str | None], ModelUsage] = {}
    for each in (model for usage in usages if usage is not None for model in usage.models):
        key = (each.operation, each.request_model, each.response_model)
        known = found.get(key)
        if known is None:
            found[key] = each
            continue
        more = {name: getattr(known, name) + getattr(each, name) for name in _COUNTS}
        found[key] = known.model_copy(update={k: min(MAX_COUNT, n) for k, n in more.items()})
    return Usage(models=tuple(found.values())) if found else None


def read_usage(value: object) -> Usage | None:
    """`JobState.usage` as it lies on the wire; None for none, and for what is of another form: it
    must keep neither a span nor a command from what else the state says."""
    try:
        found = Usage.model_validate(value)
    except ValidationError:
        return None
    return found if found.models else None
