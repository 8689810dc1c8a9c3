"""Every offset commit of a group, in order, from the broker's own log (`__consumer_offsets`).

Layout: Kafka's `OffsetCommitKey` (versions 0 and 1) and `OffsetCommitValue` (versions 3 and 4).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BytesIO

from tests.support.topics import TopicLog

_COMMIT_KEYS = (0, 1)
_PLAIN, _COMPACT = 3, 4


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed offset of one partition."""

    topic: str
    partition: int
    offset: int
    metadata: str


def commits_of(servers: str, group: str) -> list[Commit]:
    """The commits of `group` that took effect, oldest first within each partition."""
    log = TopicLog(servers, "__consumer_offsets")
    try:
        log.advance()
        found = []
        for record in log.records:
            if record.key is None or record.value is None:
                continue
            key = BytesIO(record.key)
            if _int(key, ">h") not in _COMMIT_KEYS or _text(key) != group:
                continue
            topic, partition = _text(key), _int(key, ">i")
            value = BytesIO(record.value)
            version = _int(value, ">h")
            assert version in (_PLAIN, _COMPACT), f"OffsetCommitValue has version {version}"
            offset, _epoch = _int(value, ">q"), _int(value, ">i")
            metadata = _text(value) if version == _PLAIN else _compact_text(value)
            found.append(Commit(topic, partition, offset, metadata))
        return found
    finally:
        log.close()


def _int(data: BytesIO, layout: str) -> int:
    (number,) = struct.unpack(layout, data.read(struct.calcsize(layout)))
    return int(number)


def _text(data: BytesIO) -> str:
    return data.read(_int(data, ">h")).decode()


def _compact_text(data: BytesIO) -> str:
    length, shift = 0, 0
    while True:
        (byte,) = data.read(1)
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return data.read(length - 1).decode()
