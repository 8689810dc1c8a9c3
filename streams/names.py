"""Names of topics, consumer groups and transactional ids: one place, pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.state import JOIN

_DEAD_LETTERS = re.compile(r"([a-z_][a-z0-9_]*)\.([a-z_][a-z0-9_]*)\.dlq")


@dataclass(frozen=True, slots=True)
class Names:
    """All names share `prefix` (empty in production; one per test or tenant)."""

    prefix: str = ""

    def stage_topic(self, flow: str, stage: str) -> str:
        """Hand-offs into a stage, or results in a sink."""
        return f"{self.prefix}{flow}.{stage}"

    def dead_letter_topic(self, flow: str, stage: str) -> str:
        return f"{self.prefix}{flow}.{stage}.dlq"

    def of_dead_letters(self, topic: str) -> tuple[str, str] | None:
        """Flow and stage whose dead letters `topic` holds; None if it is no such topic of ours."""
        if not topic.startswith(self.prefix):
            return None
        found = _DEAD_LETTERS.fullmatch(topic.removeprefix(self.prefix))
        return None if found is None else (found[1], found[2])

    def join_topic(self, flow: str) -> str:
        """Where a flow's forks say what they expect and branches what they bring."""
        return self.stage_topic(flow, JOIN)

    @property
    def job_state_topic(self) -> str:
        return f"{self.prefix}job-state"

    @property
    def timers_topic(self) -> str:
        """Records that come back to their topic at a time."""
        return f"{self.prefix}timers"

    @property
    def control_topic(self) -> str:
        """What people have ordered: jobs cancelled, stages paused."""
        return f"{self.prefix}control"

    def stage_group(self, flow: str, stage: str) -> str:
        """The consumer group of a stage has the name of its topic."""
        return self.stage_topic(flow, stage)

    @property
    def projector_group(self) -> str:
        return f"{self.prefix}projector"

    @property
    def tracer_group(self) -> str:
        return f"{self.prefix}tracer"

    @property
    def timers_group(self) -> str:
        return f"{self.prefix}timers"

    @staticmethod
    def member(group: str, slot: int) -> str:
        """Static member id (`group.instance.id`) and transactional id of one slot of a group."""
        return f"{group}-{slot}"

    @staticmethod
    def slot_of(group: str, member: str) -> int | None:
        """The slot in a static member id of `group`; None: it is no worker of ours."""
        slot = member.removeprefix(f"{group}-")
        return int(slot) if slot.isdecimal() else None
