"""handoff: agent pipelines on Kafka and Postgres with exactly-once hand-offs.

What a stage author needs; everything else is in the modules below.
"""

from streams.context import Context, DidNotHappen, Happened, Unknown
from streams.errors import BadRecord, BadSetup, BadWorld, EffectNotDone, EffectParked, HandoffError
from streams.flow import Flow, Stage, stage
from streams.outcome import Done, Emit, Outcome, Reject, Retry
from streams.retry import Backoff

__all__ = [
    "Backoff",
    "BadRecord",
    "BadSetup",
    "BadWorld",
    "Context",
    "DidNotHappen",
    "Done",
    "EffectNotDone",
    "EffectParked",
    "Emit",
    "Flow",
    "HandoffError",
    "Happened",
    "Outcome",
    "Reject",
    "Retry",
    "Stage",
    "Unknown",
    "stage",
]
