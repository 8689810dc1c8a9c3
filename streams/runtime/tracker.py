"""What is finished of one assigned partition: the committed state and candidates for the next.

Records are numbered densely in order of delivery, since their offsets have gaps (transaction
markers, compaction). Pure; the caller holds the ownership lock.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import orjson

from streams.offsets import Range, encode_map

_UNFINISHED, _FINISHED = 0, 1
#: `Tracker.horizon` of a partition whose group no tool has moved.
NO_HORIZON = -1


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a commit would say: `head` and `metadata`, finishing the records in `numbers`."""

    head: int
    metadata: str
    numbers: Sequence[int]
    flags: bytearray
    base: int


class Tracker:
    """One assignment of one partition. Dead once revoked (`live` is False), never revived.

    `head` and `metadata` are what the broker holds as committed.
    """

    def __init__(
        self,
        *,
        topic: str,
        topic_id: UUID,
        partition: int,
        head: int,
        metadata: str,
        finished: Sequence[Range],
        was_reset: bool = False,
        suspects_end: int = 0,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.live = True
        #: Topic, its UUID and the partition, as fields of a JSON object.
        self.json = orjson.dumps({"topic": topic, "topicId": topic_id, "partition": partition})[
            1:-1
        ]
        self.head = head
        self.metadata = metadata
        #: Records up to here are suspects, since a tool moved the group; -1: none. None while it
        #: is yet to be looked up. Commits carry it until the head has passed it.
        self.horizon: int | None = None if was_reset else suspects_end - 1
        #: For others to see, looked up now and then by the polling thread: offsets up to the end of
        #: the partition that are not read, and the timestamp (epoch) of a record read last.
        self.behind = 0
        self.newest_us = 0
        self._position = head
        self._carried = list(finished)
        # Flags and offsets of deliveries from number `_base` on; both grow with the distance
        # between the head and the read position, nine bytes a record.
        self._base = 0
        self._flags = bytearray()
        self._offsets = array("q")

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]"

    @property
    def position(self) -> int:
        """Next offset to be delivered: what lies from the head to it is in work, or finished."""
        return self._position

    @property
    def window(self) -> int:
        """Records between head and read position: what the tracker must remember."""
        return len(self._flags)

    @property
    def unfinished(self) -> int:
        """Records delivered and not committed."""
        return self._flags.count(_UNFINISHED)

    def deliver(self, offset: int) -> int | None:
        """Number of the record at `offset`, or None if it was finished in an earlier life."""
        finished = bool(self._carried) and self._was_finished(offset)
        self._flags.append(_FINISHED if finished else _UNFINISHED)
        self._offsets.append(offset)
        self._position = offset + 1
        return None if finished else self._base + len(self._flags) - 1

    def _was_finished(self, offset: int) -> bool:
        """By the ranges read back at assignment; those that are passed are forgotten."""
        while self._carried and self._carried[0][1] <= offset:
            del self._carried[0]
        return bool(self._carried) and self._carried[0][0] <= offset

    def plan(self, numbers: Sequence[int], max_bytes: int) -> Candidate:
        """The candidate that finishes as many of `numbers` as the map has room for.

        Those nearest to the head come first: they shrink the map. The rest waits for the head.
        """
        whole = self._candidate(numbers)
        if len(whole.metadata) <= max_bytes:
            return whole
        ordered = sorted(numbers)
        fits, too_many = 0, len(ordered)
        best = self._candidate(())
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            tried = self._candidate(ordered[:middle])
            if len(tried.metadata) <= max_bytes:
                fits, best = middle, tried
            else:
                too_many = middle
        return best

    def promote(self, candidate: Candidate) -> None:
        """The candidate was committed: it is the state now. Deliveries since then are kept."""
        self._flags[: len(candidate.flags)] = candidate.flags
        self.head, self.metadata = candidate.head, candidate.metadata
        done = self._flags.find(_UNFINISHED)
        if done < 0:
            done = len(self._flags)
        del self._flags[:done]
        del self._offsets[:done]
        self._base += done

    def _candidate(self, numbers: Sequence[int]) -> Candidate:
        flags = self._flags.copy()
        base = self._base
        for number in numbers:
            flags[number - base] = _FINISHED
        first = flags.find(_UNFINISHED)
        head = self._position if first < 0 else self._offsets[first]
        ranges = [] if first < 0 else self._ranges(flags, first)
        ranges += [(max(a, self._position), b) for a, b in self._carried if b > self._position]
        assert self.horizon is not None, "looked up before the first record ran"
        metadata = encode_map(self.topic_id, head, ranges, self.horizon + 1)
        return Candidate(head, metadata, numbers, flags, base)

    def _ranges(self, flags: bytearray, first: int) -> list[Range]:
        """Finished runs past the first unfinished record; gaps belong to the run before them."""
        ranges: list[Range] = []
        at = first
        while (start := flags.find(_FINISHED, at)) >= 0:
            at = flags.find(_UNFINISHED, start)
            if at < 0:
                ranges.append((self._offsets[start], self._position))
                break
            ranges.append((self._offsets[start], self._offsets[at]))
        return ranges
