"""Topics of one measurement: their names, and making and dropping them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS: Final = 4
STAGES: Final = ("classify", "enrich", "act")


@dataclass(frozen=True)
class Topics:
    """All topics of a measurement share `prefix`; peers and handoff spell them alike."""

    bootstrap: str
    prefix: str

    def into(self, stage: str) -> str:
        """Hand-offs into `stage`; `done` is where a finished job arrives."""
        return f"{self.prefix}bench.{stage}"

    @property
    def hand_offs(self) -> list[str]:
        """Topics that a stage writes hand-offs to, in the order of the flow."""
        return [self.into(each) for each in (*STAGES[1:], "done")]

    @property
    def job_state(self) -> str:
        return f"{self.prefix}job-state"

    def create(self) -> None:
        """Make the topics a peer needs. Returns once the broker has them all."""
        new = [NewTopic(self.into(each), PARTITIONS, 1) for each in (*STAGES, "done")]
        new.append(NewTopic(self.job_state, PARTITIONS, 1, config={"cleanup.policy": "compact"}))
        admin = self._admin()
        for made in admin.create_topics(new).values():
            made.result()

    def _admin(self) -> AdminClient:
        # Level 5 leaves out the remark that a client went away before its last event.
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 5})

    def drop(self) -> None:
        """Delete every topic with this prefix, whoever made it."""
        admin = self._admin()
        mine = [t for t in admin.list_topics(timeout=10).topics if t.startswith(self.prefix)]
        if mine:
            for gone in admin.delete_topics(mine).values():
                gone.result()
