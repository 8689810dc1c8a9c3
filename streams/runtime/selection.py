"""What one transaction holds, and what the committed offsets say became of it (decision 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import structlog

from streams.errors import Fenced
from streams.kafka import TopicPartition
from streams.runtime.delivery import Delivery, OutRecord
from streams.runtime.tracker import Candidate, Tracker
from streams.runtime.transaction import Verdict

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Selection:
    """What one transaction holds: deliveries of live trackers, and the metadata of that moment."""

    deliveries: list[Delivery]
    candidates: dict[Tracker, Candidate]
    metadata: Any

    def offsets(self) -> list[TopicPartition]:
        return [
            TopicPartition(t.topic, t.partition, c.head, metadata=c.metadata)
            for t, c in self.candidates.items()
        ]

    def records(self, write: Callable[[Delivery], Sequence[OutRecord]]) -> Iterator[OutRecord]:
        return chain.from_iterable(map(write, self.deliveries))

    def outcome(self, group: str, found: Mapping[int, TopicPartition]) -> Verdict:
        """Whether it was committed, by the stable offsets of its partitions as they are now.

        Partitions that are no longer ours say nothing: their next owner has gone on. Raises
        `Fenced` if somebody else moved one that is.
        """
        verdicts = set()
        for tracker, candidate in self.candidates.items():
            if not tracker.live:
                continue
            at = found.get(tracker.partition)
            place = (at.offset, at.metadata) if at is not None else None
            if place == (candidate.head, candidate.metadata):
                verdicts.add(Verdict.COMMITTED)
            elif place == (tracker.head, tracker.metadata):
                verdicts.add(Verdict.ABORTED)
            elif tracker.live:
                raise Fenced(
                    f"Group {group} was moved on {tracker.place} by somebody else: committed "
                    f"is {place and place[0]}, we had {tracker.head} and were writing "
                    f"{candidate.head}. Give each worker process a slot of its own (--slot).",
                )
        if len(verdicts) > 1:
            raise Fenced(f"Group {group}: one transaction cannot be half committed; stopping.")
        log.info("commit_resolved", group=group, outcome=[v.value for v in verdicts])
        return Verdict.COMMITTED if verdicts == {Verdict.COMMITTED} else Verdict.ABORTED
