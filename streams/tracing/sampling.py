"""The head decision: which traces are exported, by the standard `OTEL_TRACES_SAMPLER` variables.

It depends on the trace id alone, so every worker and the tracer decide alike without telling each
other. `job-state` and `job_history` hold every job whatever is decided.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, Sampler
from opentelemetry.trace import TracerProvider as AnyProvider

_NOTHING: Final = Context()


class HeadSampler:
    """What a sampler says of the root of a trace. `always` and `never` need not ask it."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        root = sampler.get_description().removeprefix("ParentBased{root:")
        self.always = root.startswith("AlwaysOn")
        self.never = root.startswith("AlwaysOff")

    def keeps(self, trace_id: int) -> bool:
        if self.always or self.never:
            return self.always
        # Of a root, whatever span is current where this is asked.
        found = self._sampler.should_sample(_NOTHING, trace_id, "hop")
        return found.decision is Decision.RECORD_AND_SAMPLE


def sampler_of(provider: AnyProvider) -> HeadSampler:
    """That of an SDK's provider; another kind of provider decides for itself, so all is kept."""
    found = getattr(provider, "sampler", None)
    return HeadSampler(found if isinstance(found, Sampler) else ALWAYS_ON)


def sampler_from_environment() -> HeadSampler:
    """By `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`; all, where they are not set."""
    return sampler_of(TracerProvider(shutdown_on_exit=False))
