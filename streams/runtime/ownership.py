"""Which partitions a stage owns now, and the group metadata that goes with that: one lock for both.

Rule 1 of the commit protocol (decision 3): results are committed only while the tracker that
delivered them lives, with metadata read in the same critical section.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

from streams.runtime.tracker import Tracker


class Ownership:
    """Trackers of the partitions that are assigned now. All access under `lock`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.trackers: dict[int, Tracker] = {}
        #: Opaque `ConsumerGroupMetadata`, refreshed by the polling thread only.
        self.metadata: Any = None

    def assign(self, trackers: Iterable[Tracker], metadata: Any) -> None:
        """Without `metadata` what was known stays, which the group refuses if it is outdated."""
        with self.lock:
            self.trackers.update((t.partition, t) for t in trackers)
            if metadata is not None:
                self.metadata = metadata

    def end(self, partitions: Iterable[int]) -> list[Tracker]:
        """Their trackers die: nothing that they delivered is committed from now on."""
        with self.lock:
            ended = [self.trackers.pop(p) for p in partitions if p in self.trackers]
            for tracker in ended:
                tracker.live = False
        return ended

    def owned(self, partitions: Iterable[int]) -> list[Tracker]:
        with self.lock:
            return [self.trackers[p] for p in partitions if p in self.trackers]
