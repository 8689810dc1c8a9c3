"""The hot path: polling threads, stage loops, group commits, and the Faust app around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.runtime.app import faust_app
    from streams.runtime.worker import run_worker

__all__ = ["faust_app", "run_worker"]


def __getattr__(name: str) -> Any:
    """Faust takes half a second to import, which a stage author's test need not pay."""
    if name == "faust_app":
        from streams.runtime.app import faust_app

        return faust_app
    if name == "run_worker":
        from streams.runtime.worker import run_worker

        return run_worker
    raise AttributeError(name)
