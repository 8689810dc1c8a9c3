"""An effect target's own record: JSON lines, one object with its `key` per effect that took place.

A line whose `what` is something else than `effect` is passed over: a target may write down calls in
the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from streams.errors import BadSetup

_BATCH_LINES: Final = 10_000
#: Of `traceId:stage:visit:name`.
_KEY_PARTS: Final = 4


def read_target(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Key and name of each effect, in batches; `stage/name`, or "" where the key is no ledger's.

    A last line that was cut off in the middle did not happen. Raises `BadSetup` for any other that
    is none.
    """
    batch: list[tuple[str, str]] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and not _whole(line):
                    break
                effect = _effect(path, number, line)
                if effect is not None:
                    batch.append(effect)
                if len(batch) >= _BATCH_LINES:
                    yield batch
                    batch = []
    except OSError as e:
        raise BadSetup(f"The target's record {path} cannot be read: {e.strerror}.") from None
    if batch:
        yield batch


def _whole(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _effect(path: Path, number: int, line: bytes) -> tuple[str, str] | None:
    if not line.strip():
        return None
    try:
        entry = orjson.loads(line)
        if entry.get("what", "effect") != "effect":
            return None
        key = entry["key"]
        parts = key.split(":", _KEY_PARTS - 1)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        raise BadSetup(
            f'Line {number} of the target\'s record {path} is no object with a "key": give one '
            "JSON object a line for each effect that took place."
        ) from None
    return key, f"{parts[1]}/{parts[3]}" if len(parts) == _KEY_PARTS else ""
