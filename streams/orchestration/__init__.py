"""The durable orchestrator (decision 16): ordinary Python over a journal in Postgres."""

from streams.orchestration.declare import Orchestration, orchestration_of, orchestrator
from streams.orchestration.run import (
    CallFailed,
    Pending,
    Run,
    RunCancelled,
    TimedOut,
)

__all__ = [
    "CallFailed",
    "Orchestration",
    "Pending",
    "Run",
    "RunCancelled",
    "TimedOut",
    "orchestration_of",
    "orchestrator",
]
