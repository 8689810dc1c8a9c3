"""The mail flow that ships, with handlers that make spans of their own."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from opentelemetry import trace

from agents import act, classify, enrich
from streams import Context, Flow, Stage
from tests.support import target

SCOPE = "handlers"
#: `enrich` waits here inside its own span.
GATE = "enrich"


def spanned(each: Stage[Any, Any], gate: str = "") -> Stage[Any, Any]:
    """`each` inside a span `own <name>`, as an instrumented client would make it."""

    async def run(model: Any, job: Context) -> Any:
        tracer = trace.get_tracer(SCOPE)
        with tracer.start_as_current_span(f"own {each.name}"):
            if gate:
                await target.pass_gate(gate)
            outcome = each.handler(model, job)
            return await outcome if inspect.isawaitable(outcome) else outcome

    return replace(each, handler=run)


flow = Flow("mail", (spanned(classify), spanned(enrich, GATE), spanned(act)))
