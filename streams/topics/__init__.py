"""Topics of an installation: what a flow declares (compared, applied), and what they still keep."""

from streams.topics.declared import (
    Change,
    Misfit,
    Plan,
    Seed,
    TopicSpec,
    apply,
    groups,
    plan,
    specs,
)
from streams.topics.kept import Horizon, Kept, KeptPart, horizon

__all__ = [
    "Change",
    "Horizon",
    "Kept",
    "KeptPart",
    "Misfit",
    "Plan",
    "Seed",
    "TopicSpec",
    "apply",
    "groups",
    "horizon",
    "plan",
    "specs",
]
