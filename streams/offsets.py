"""The offset map: which records past the committed offset are finished already.

Jobs finish out of order, and a commit is one offset per partition. The rest travels in the
commit's metadata as run lengths, so that after a crash finished records are not run again. Pure.

Layout, base64 of: magic ``H``, version 1, topic UUID (16 bytes), head (8 bytes, big endian), run lengths
as LEB128 varints (unfinished, finished, unfinished, …, finished; from the head on), CRC-32 (4 bytes).
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


def encode_map(topic_id: UUID, head: int, finished: Iterable[Range]) -> str:
    """The metadata for committing `head`; `finished` is ascending, disjoint and past `head`.

    ASCII; about 40 characters when `finished` is empty, two to three more per gap.
    """
    out = bytearray(_PREFIX.pack(_MAGIC, _VERSION, topic_id.bytes, head))
    at = head
    for start, end in finished:
        for length in (start - at, end - start):
            rest = length
            while rest > _LOW:
                out.append(rest & _LOW | _MORE)
                rest >>= 7
            out.append(rest)
        at = end
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
    for unfinished, finished in zip(runs[::2], runs[1::2], strict=True):
        ranges.append((at + unfinished, at + unfinished + finished))
        at += unfinished + finished
    return ranges


def _runs(body: bytes) -> list[int]:
    runs, value, shift = [], 0, 0
    for byte in body:
        value |= (byte & _LOW) << shift
        shift += 7
        if byte < _MORE:
            runs.append(value)
            value = shift = 0
    if shift or len(runs) % 2:
        raise ValueError("it ends in the middle of a run")
    return runs
