"""The offset map: which records past the committed offset are finished already.

Jobs finish out of order, and a commit is one offset per partition. The rest travels in the
commit's metadata as run lengths, so that after a crash finished records are not run again. Pure.

Layout, base64 of: magic ``H``, version 1, topic UUID (16 bytes), head (8 bytes, big endian), run
lengths as LEB128 varints (unfinished, finished, unfinished, …, finished; from the head on), CRC-32
(4 bytes). As long as a group that a tool set back has not passed what it had consumed before, one
more varint stands behind the runs: how many offsets from the head on are suspects.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable
from uuid import UUID

from streams.errors import BadSetup

#: Half-open range of offsets.
Range = tuple[int, int]

_PREFIX = struct.Struct(">cB16sQ")
_CRC = struct.Struct(">I")
_MAGIC, _VERSION = b"H", 1
_MORE, _LOW = 0x80, 0x7F


def encode_map(topic_id: UUID, head: int, finished: Iterable[Range], suspects_end: int = 0) -> str:
    """The metadata for committing `head`; `finished` is ascending, disjoint and past `head`.

    Records below `suspects_end` may be finished though the map does not say so (see
    `suspects_end_of`). ASCII; about 40 characters when `finished` is empty, two to three more per
    gap.
    """
    out = bytearray(_PREFIX.pack(_MAGIC, _VERSION, topic_id.bytes, head))
    at = head
    for start, end in finished:
        _append(out, start - at)
        _append(out, end - start)
        at = end
    if suspects_end > head:
        _append(out, suspects_end - head)
    out += _CRC.pack(zlib.crc32(out))
    return base64.b64encode(out).decode()


def decode_map(metadata: str, *, topic_id: UUID, committed: int, where: str) -> list[Range]:
    """The finished ranges past `committed`. `where` names group and partition for messages.

    Raises `BadSetup` for metadata that is unreadable, of another topic, or of another offset: to
    guess would lose work or do it twice.
    """
    advice = (
        "Find out who moved it; to start over on purpose, reset the group's offsets with empty "
        "metadata (kafka-consumer-groups --reset-offsets): finished jobs are then skipped."
    )
    try:
        raw = base64.b64decode(metadata, validate=True)
        magic, version, topic, head = _PREFIX.unpack_from(raw)
        (crc,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
        if magic != _MAGIC or version != _VERSION or crc != zlib.crc32(raw[: -_CRC.size]):
            raise ValueError("magic, version or checksum differ")
        runs = _runs(raw[_PREFIX.size : -_CRC.size])
    except (binascii.Error, struct.error, ValueError) as e:
        raise BadSetup(f"The offset map of {where} is unreadable ({e}). {advice}") from None
    if UUID(bytes=topic) != topic_id:
        raise BadSetup(
            f"The offset of {where} belongs to topic {UUID(bytes=topic)}, but the topic is now "
            f"{topic_id}: it was deleted and made again. Run `handoff topics apply --reseed` once "
            "you know that nothing of the old topic is still needed."
        )
    if head != committed:
        raise BadSetup(
            f"The offset of {where} is {committed}, but its map was written for {head}. {advice}"
        )
    ranges, at = [], head
    for unfinished, finished in zip(runs[::2], runs[1::2], strict=False):
        ranges.append((at + unfinished, at + unfinished + finished))
        at += unfinished + finished
    return ranges


def suspects_end_of(metadata: str) -> int:
    """Offset below which records are suspects, by a map that `decode_map` has accepted; 0: none.

    A group that a tool set back brings finished records again. Its first commits carry a map, so a
    worker that dies before it has passed them must leave word of it.
    """
    raw = base64.b64decode(metadata)
    head: int = _PREFIX.unpack_from(raw)[3]
    runs = _runs(raw[_PREFIX.size : -_CRC.size])
    return head + runs[-1] if len(runs) % 2 else 0


def _append(out: bytearray, number: int) -> None:
    while number > _LOW:
        out.append(number & _LOW | _MORE)
        number >>= 7
    out.append(number)


def _runs(body: bytes) -> list[int]:
    runs, value, shift = [], 0, 0
    for byte in body:
        value |= (byte & _LOW) << shift
        shift += 7
        if byte < _MORE:
            runs.append(value)
            value = shift = 0
    if shift:
        raise ValueError("it ends in the middle of a run")
    return runs
