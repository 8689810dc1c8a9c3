"""Migrations: `streams/migrations/*.sql` in the order of their names, each exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from streams.config import Settings
from streams.errors import BadSetup
from streams.postgres import SyncConn, connect, create_database, load_queries, place

_SQL: Final = load_queries("streams.state")


@dataclass(frozen=True, slots=True)
class Migration:
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()


def migrations(folder: Traversable | None = None) -> list[Migration]:
    """The migrations that this program brings, or those of `folder`."""
    found = (folder or files("streams").joinpath("migrations")).iterdir()
    return [
        Migration(path.name.removesuffix(".sql"), path.read_text(encoding="utf-8"))
        for path in sorted(found, key=lambda p: p.name)
        if path.name.endswith(".sql")
    ]


def ensure_database(settings: Settings) -> bool:
    """Create the database of `settings` if the server has none of that name; True if it did.

    Raises `BadSetup` when the role may not create it, `BadWorld` when the server does not answer.
    """
    return create_database(settings)


def migrate(settings: Settings, known: list[Migration] | None = None) -> list[str]:
    """Apply what is pending and return the names; several processes at once apply each once.

    A crash leaves whole migrations only. Raises `BadSetup` for a migration that was changed after
    it was applied and for a database that is not UTF-8; `BadWorld` when Postgres fails.
    """
    with connect(settings) as conn:
        _check_encoding(conn, settings)
        return [m.name for m in (known or migrations()) if _apply(conn, m, settings)]


def pending(settings: Settings, known: list[Migration] | None = None) -> list[str]:
    """Names of the migrations that the database lacks; changes nothing. Raises as `migrate`."""
    with connect(settings) as conn:
        row = conn.execute(_SQL["has_migrations"]).fetchone()
        exists = row is not None and row["yes"]
        return [
            m.name
            for m in known or migrations()
            if not exists or not _is_applied(conn, m, settings)
        ]


def _apply(conn: SyncConn, migration: Migration, settings: Settings) -> bool:
    with conn.transaction():
        # The lock ends with the transaction, so it also holds behind a pooler.
        conn.execute(_SQL["lock_migrations"])
        conn.execute(_SQL["create_migrations"])
        if _is_applied(conn, migration, settings):
            return False
        conn.execute(migration.sql.encode())
        conn.execute(
            _SQL["record_migration"], {"name": migration.name, "checksum": migration.checksum}
        )
        return True


def _is_applied(conn: SyncConn, migration: Migration, settings: Settings) -> bool:
    row = conn.execute(_SQL["find_migration"], {"name": migration.name}).fetchone()
    if row is not None and row["checksum"] != migration.checksum:
        raise BadSetup(
            f"Migration {migration.name} was changed after it was applied to "
            f"{place(settings.database_url)} on {row['applied_at']:%Y-%m-%d}. Restore the file and "
            "put the change into a new migration.",
            migration=migration.name,
        )
    return row is not None


def _check_encoding(conn: SyncConn, settings: Settings) -> None:
    row = conn.execute("SHOW server_encoding").fetchone()
    if row is None or row["server_encoding"] != "UTF8":
        raise BadSetup(
            f"The database {place(settings.database_url)} does not store UTF-8, so it cannot hold "
            "every payload. Create one with ENCODING 'UTF8'."
        )
