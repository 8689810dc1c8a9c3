"""handoff: agent pipelines on Kafka and Postgres with exactly-once hand-offs.

What a stage author needs; everything else is in the modules below.
"""

from streams.context import Context, DidNotHappen, Happened, Unknown
from streams.errors import BadRecord, BadSetup, BadWorld, EffectNotDone, EffectParked, HandoffError
from streams.flow import Flow, Stage, stage
from streams.joins import Branch, Joined
from streams.limits import Limit
from streams.orchestration import CallFailed, Run, RunCancelled, TimedOut, orchestrator
from streams.outcome import Done, Emit, Fork, Outcome, Reject, Retry, Wait
from streams.retry import Backoff
from streams.signals import Signal

__all__ = [
    "Backoff",
    "BadRecord",
    "BadSetup",
    "BadWorld",
    "Branch",
    "CallFailed",
    "Context",
    "DidNotHappen",
    "Done",
    "EffectNotDone",
    "EffectParked",
    "Emit",
    "Flow",
    "Fork",
    "HandoffError",
    "Happened",
    "Joined",
    "Limit",
    "Outcome",
    "Reject",
    "Retry",
    "Run",
    "RunCancelled",
    "Signal",
    "Stage",
    "TimedOut",
    "Unknown",
    "Wait",
    "orchestrator",
    "stage",
]
