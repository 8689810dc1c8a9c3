"""The labelled corpus and its split: nine tenths to train on, one tenth held out.

One JSON object a line, gzipped: `id`, `thread`, `label` (spam, ham), `list`, `date`, `subject`,
`body`, `html`.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

Row = dict[str, Any]

FOLDS = 10
HELD_OUT = 0
#: Letters by which two bodies count as copies of each other; shorter bodies are never copies.
_COPY_CHARS = 300
_COPY_MIN_CHARS = 40
_NO_LETTER = re.compile(r"[^a-z]+")


def read(path: Path) -> list[Row]:
    with gzip.open(path, "rb") as lines:
        return [orjson.loads(line) for line in lines]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write gzipped lines; the same rows give the same bytes."""
    text = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    path.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))


def folds(rows: Sequence[Row]) -> list[int]:
    """The fold (0 to 9) of each row.

    A thread is never split, and neither are copies: spam is sent again and again under new threads,
    and a copy in training would make the held-out tenth look easier than new mail is.
    """
    groups = _Groups()
    for row in rows:
        groups.join(f"thread {row['thread']}", f"thread {row['thread']}")
        letters = _NO_LETTER.sub("", row["body"].lower())[:_COPY_CHARS]
        if len(letters) >= _COPY_MIN_CHARS:
            groups.join(f"thread {row['thread']}", f"body {letters}")
    names = groups.names()
    return [_fold(names[f"thread {row['thread']}"]) for row in rows]


def _fold(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % FOLDS


class _Groups:
    """Union-find over names."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def _root(self, name: str) -> str:
        while (parent := self._parent.setdefault(name, name)) != name:
            self._parent[name] = self._parent[parent]
            name = parent
        return name

    def join(self, a: str, b: str) -> None:
        self._parent[self._root(a)] = self._root(b)

    def names(self) -> dict[str, str]:
        """The smallest name of each one's group: independent of the order of the rows."""
        smallest: dict[str, str] = {}
        for name in list(self._parent):
            root = self._root(name)
            smallest[root] = min(name, smallest.get(root, name))
        return {name: smallest[self._root(name)] for name in list(self._parent)}
