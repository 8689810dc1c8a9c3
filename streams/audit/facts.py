"""The temporary database in which facts are joined. The sole importer of sqlite3.

It is a file, so memory is bounded by its cache, whatever it holds; no journal, since it is thrown
away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from streams.postgres import load_queries

SQL: Final = load_queries("streams.audit")

_PRAGMAS: Final = (
    "page_size = 8192",
    "journal_mode = OFF",
    "synchronous = OFF",
    "locking_mode = EXCLUSIVE",
    "cache_size = -65536",
    "temp_store = FILE",
)

Row = tuple[Any, ...]


class Facts:
    """Belongs to one thread. `add` first, `run` the indexes and rules, then ask."""

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        for pragma in _PRAGMAS:
            self._db.execute(f"PRAGMA {pragma}")
        self._db.executescript(SQL["schema"])

    def add(self, table: str, rows: Iterable[Row]) -> None:
        """Insert whole rows, in the order of the table's columns."""
        self._db.execute("BEGIN")
        self._db.executemany(SQL[f"insert_{table}"], rows)
        self._db.execute("COMMIT")

    def run(self, name: str, values: Mapping[str, Any] | None = None) -> None:
        """Run a named statement."""
        self._db.execute(SQL[name], values or {})

    def run_many(self, name: str, rows: Iterable[Row]) -> None:
        """Run a named statement for each of `rows`."""
        self._db.execute("BEGIN")
        self._db.executemany(SQL[name], rows)
        self._db.execute("COMMIT")

    def ask(self, name: str, values: Mapping[str, Any] | None = None) -> Iterator[Row]:
        """Rows of a named query, one by one."""
        return iter(self._db.execute(SQL[name], values or {}))

    def number(self, name: str, values: Mapping[str, Any] | None = None) -> int:
        """The first column of the only row."""
        return int(next(self.ask(name, values))[0])

    def close(self) -> None:
        self._db.close()
