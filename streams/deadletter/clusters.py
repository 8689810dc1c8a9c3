"""Dead letters by what went wrong: errors that differ in ids and numbers only are one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from streams.deadletter.letters import Letter, Place

#: In this order: what is quoted may hold anything, a path or a URL may hold ids, ids hold numbers.
_RULES: Final = (
    # An apostrophe inside a word quotes nothing.
    (re.compile(r"(?<!\w)(['\"`])(?:\\.|(?!\1)[^\n\\])*\1(?!\w)"), r"\1…\1"),
    (re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"`<>]+"), "<url>"),
    (re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:[\\/][\w.@~+-]+){2,}[\\/]?"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b[0-9a-fA-F]{32}(?:/\d+)*\b"), "<id>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    # Words such as "defaced" have no digit, numbers have no letter.
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)
_KEY_BYTES = 4
#: Of a message, before and after: patterns must not meet a megabyte, and how an error begins tells
#: it from others, even where numbers of different lengths shift the rest.
_RAW_CHARS = 4_000
_TOLD_CHARS = 400


def normalise(message: str) -> str:
    """`message` without what differs from job to job: quoted text, URLs, paths, ids, numbers."""
    message = message[:_RAW_CHARS]
    for pattern, instead in _RULES:
        message = pattern.sub(instead, message)
    return message[:_TOLD_CHARS].strip()


def cluster_key(letter: Letter) -> str:
    """Eight hex digits: the same for letters of one stage that failed in the same way."""
    parts = (letter.where, letter.kind, normalise(letter.message))
    return blake2b("\0".join(parts).encode(), digest_size=_KEY_BYTES).hexdigest()


@dataclass(slots=True)
class Cluster:
    """Letters of one stage and one normalised error. Times are epoch milliseconds."""

    key: str
    where: str
    kind: str
    error: str
    letters: int
    first_ms: int
    last_ms: int
    #: One of them, for `handoff dlq show`.
    example: str


@dataclass(slots=True)
class Clusters:
    """Collects letters; memory grows with the number of clusters only."""

    found: dict[str, Cluster] = field(default_factory=dict)

    def add(self, letter: Letter) -> None:
        key = cluster_key(letter)
        cluster = self.found.get(key)
        if cluster is None:
            self.found[key] = Cluster(
                key,
                letter.where,
                letter.kind,
                normalise(letter.message),
                1,
                letter.at_ms,
                letter.at_ms,
                example_id(letter),
            )
            return
        cluster.letters += 1
        cluster.first_ms = min(cluster.first_ms, letter.at_ms)
        cluster.last_ms = max(cluster.last_ms, letter.at_ms)

    def largest_first(self) -> list[Cluster]:
        return sorted(self.found.values(), key=lambda c: (-c.letters, c.where, c.key))


def example_id(letter: Letter) -> str:
    """What `show` takes for this letter: the job's id, or its place where it names no job."""
    place: Place = letter.place
    return letter.job or str(place)
