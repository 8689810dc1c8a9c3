"""The desk's record: an append-only file of every call and every effect, and what it adds up to.

One JSON object a line, flushed as it is written, so that it outlives the process however that ends.
The file is read back at the start, so keys are honoured and doubles counted across restarts.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import orjson


class Result(StrEnum):
    """How a call ended."""

    EFFECT = "effect"
    REPLAY = "replay"
    #: The key came with another body before.
    MISMATCH = "mismatch"
    #: A call with the same key was still running.
    CONFLICT = "conflict"
    #: Failed on purpose, before the effect or (its answer withheld) behind it.
    FAILED_BEFORE = "failed_before"
    FAILED_AFTER = "failed_after"


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that the desk did; `number` is its answer."""

    key: str
    job: str
    kind: str
    fingerprint: str
    number: str


def fingerprint(path: str, body: bytes) -> str:
    """Tells one request from another under the same key."""
    return blake2b(path.encode() + b"\0" + body, digest_size=16).hexdigest()


class Book:
    """The record in memory and, with a `path`, on disk."""

    def __init__(self, path: Path | None = None) -> None:
        self.calls: Counter[Result] = Counter()
        self._effects: list[Effect] = []
        self._by_key: dict[str, Effect] = {}
        self._per_key: Counter[str] = Counter()
        self._per_job: Counter[tuple[str, str]] = Counter()
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._reload(path)
            self._file = path.open("ab", buffering=0)

    def effect_of(self, key: str) -> Effect | None:
        """The effect that was first done under `key`."""
        return self._by_key.get(key)

    def do(self, key: str, job: str, kind: str, fingerprint: str) -> Effect:
        """Carry out an effect: it has happened once its line is in the file."""
        effect = Effect(key, job, kind, fingerprint, f"{kind[0].upper()}-{self.effects + 1:06d}")
        self._write({"what": "effect", **asdict(effect)})
        self._count_effect(effect)
        return effect

    def note(self, key: str, result: Result) -> None:
        """Write down a call and how it ended."""
        self._write({"what": "call", "key": key, "result": result.value})
        self.calls[result] += 1

    @property
    def effects(self) -> int:
        return len(self._effects)

    def all_effects(self) -> list[Effect]:
        """All effects, in the order in which they were done."""
        return list(self._effects)

    def effects_of(self, job: str) -> list[Effect]:
        return [effect for effect in self._effects if effect.job == job]

    def stats(self) -> dict[str, int]:
        """Counts of calls by result, of effects, and of what must not be: doubles.

        `keys_with_many_effects` are keys that more than one effect was done under; `doubles` are
        effects beyond the first of one job and kind, under whatever keys.
        """
        return {
            "calls": self.calls.total(),
            "effects": self.effects,
            "replays": self.calls[Result.REPLAY],
            "mismatches": self.calls[Result.MISMATCH],
            "conflicts": self.calls[Result.CONFLICT],
            "failures": self.calls[Result.FAILED_BEFORE] + self.calls[Result.FAILED_AFTER],
            "keys": len(self._per_key),
            "keys_with_many_effects": sum(n > 1 for n in self._per_key.values()),
            "doubles": sum(n - 1 for n in self._per_job.values()),
        }

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(orjson.dumps(entry) + b"\n")

    def _count_effect(self, effect: Effect) -> None:
        self._effects.append(effect)
        self._by_key.setdefault(effect.key, effect)
        self._per_key[effect.key] += 1
        self._per_job[effect.job, effect.kind] += 1

    def _reload(self, path: Path) -> None:
        """Read the file back; a last line that was cut off in the middle did not happen."""
        if not path.exists():
            return
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(path, whole)
        for number, line in enumerate(text[:whole].splitlines(), 1):
            try:
                self._take(orjson.loads(line))
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as e:
                raise ValueError(
                    f"Line {number} of the desk's record {path} cannot be read ({e}). Move the "
                    "file away to start a new record."
                ) from e

    def _take(self, entry: dict[str, Any]) -> None:
        if entry.pop("what") == "effect":
            self._count_effect(Effect(**entry))
        else:
            self.calls[Result(entry["result"])] += 1
