"""The mail flow that ships: three stages, one file each, and the list of them.

handoff worker --app agents:flow        all stages in one worker
faust -A agents worker                  the same
"""

from __future__ import annotations

from typing import Any

from agents.act import act
from agents.classify import classify
from agents.enrich import enrich
from streams import Flow

flow = Flow("mail", (classify, enrich, act))

__all__ = ["act", "classify", "enrich", "flow"]


def __getattr__(name: str) -> Any:
    """`agents.app` for Faust, made when it is asked for: importing the flow starts nothing."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported here, since a stage's test needs no Faust.
    from streams.runtime import faust_app  # noqa: PLC0415

    globals()["app"] = made = faust_app(flow)
    return made
