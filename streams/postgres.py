"""Postgres: connections, named SQL, and which of its errors are the world's fault.

The sole importer of psycopg. Statements live in `.sql` files as `-- name: …` blocks; values travel
as parameters only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlsplit

import orjson
import psycopg
from psycopg import AsyncConnection, Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from streams.config import Settings
from streams.errors import BadSetup, BadWorld

set_json_dumps(orjson.dumps)
set_json_loads(orjson.loads)

Conn = AsyncConnection[DictRow]
SyncConn = Connection[DictRow]
Pool = AsyncConnectionPool[Conn]


class LockBusy(BadWorld):
    """Others hold a lock for longer than we wait; the transaction was rolled back.

    Operator action: see who holds it (`pg_stat_activity`, `pg_locks`), then try again.
    """


_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_queries(package: str) -> dict[str, str]:
    """All `-- name: …` statements of the `sql` folder in `package`, by name."""
    queries: dict[str, str] = {}
    for path in sorted(files(package).joinpath("sql").iterdir(), key=lambda p: p.name):
        if path.name.endswith(".sql"):
            _, *pairs = _NAMED.split(path.read_text(encoding="utf-8"))
            queries.update(zip(pairs[::2], (q.strip() for q in pairs[1::2]), strict=True))
    return queries


def for_table(
    queries: Mapping[str, str], *table: str, only: Iterable[str] | None = None
) -> dict[str, sql.Composed]:
    """`queries`, or `only` some, whose `{table}` is to be `table`: its name, or schema and name,
    which are quoted."""
    name = sql.Identifier(*table)
    wanted = queries if only is None else only
    return {key: sql.SQL(queries[key]).format(table=name) for key in wanted}


def array_literal(texts: Iterable[str]) -> str:
    """`texts` as Postgres spells a text[] value, for COPY."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


def plain_array(texts: Iterable[str]) -> str:
    """The same, made by joining, of what an array literal need not quote: ids, numbers, names of
    ours, NULL. A psycopg list costs ten times as much in Python."""
    return "{" + ",".join(texts) + "}"


def place(database_url: str) -> str:
    """Host, port and name of a database, for messages: never its password."""
    info = conninfo_to_dict(database_url)
    return f"{info.get('host', 'localhost')}:{info.get('port', 5432)}/{info.get('dbname', '')}"


def _options(settings: Settings) -> dict[str, Any]:
    # Each call has a hard deadline: the server ends slow statements, the kernel dead connections.
    ms = int(settings.database_timeout_s * 1000)
    return {
        "row_factory": dict_row,
        "connect_timeout": max(2, int(settings.database_timeout_s)),
        "options": f"-c statement_timeout={ms} -c lock_timeout={ms}"
        f" -c idle_in_transaction_session_timeout={3 * ms}",
        "tcp_user_timeout": ms,
        "keepalives_idle": 5,
        "application_name": "handoff",
    }


def open_pool(settings: Settings, *, max_size: int = 4, read_only: bool = False) -> Pool:
    """A pool that is opened with `async with` or `await pool.open()`; heals after a restart. With
    `read_only` the server refuses every write."""
    options = _options(settings)
    if read_only:
        options["options"] += " -c default_transaction_read_only=on"
    return AsyncConnectionPool(
        settings.database_url,
        kwargs={**options, "autocommit": True},
        connection_class=AsyncConnection[DictRow],
        min_size=1,
        max_size=max_size,
        timeout=settings.database_timeout_s,
        check=AsyncConnectionPool.check_connection,
        open=False,
    )


@contextmanager
def connect(settings: Settings) -> Iterator[SyncConn]:
    """One autocommit connection for a command. Raises `BadWorld` when Postgres does not answer."""
    with blame(settings):
        conn = Connection.connect(settings.database_url, autocommit=True, **_options(settings))
    with conn, blame(settings):
        yield conn


@asynccontextmanager
async def connect_alone(settings: Settings) -> AsyncIterator[Conn]:
    """One autocommit connection for long work, whose statements may take as long as they do; locks
    are waited for as usual. What is temporary, and its advisory locks, end with it.

    Raises `BadWorld` when Postgres does not answer.
    """
    with blame(settings):
        conn = await AsyncConnection[DictRow].connect(
            settings.database_url, autocommit=True, **_options(settings)
        )
        async with conn:
            await conn.execute("SET statement_timeout = 0")
            yield conn


def create_database(settings: Settings) -> bool:
    """Create the database of `settings` if its server has none of that name; True if it did.

    Raises `BadSetup` when the role may not, `BadWorld` when the server does not answer.
    """
    try:
        with connect(settings):
            return False
    except BadWorld as unreachable:
        info = conninfo_to_dict(settings.database_url)
        name = str(info.get("dbname") or info.get("user") or "")
        # A failed log-in carries no SQLSTATE: ask the server's own database whether ours exists.
        server = settings.model_copy(
            update={"database_url": make_conninfo(settings.database_url, dbname="postgres")}
        )
        with connect(server) as conn:
            found = conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if found is not None:
                raise unreachable
            return _create_database(conn, name, place(settings.database_url))


def _create_database(conn: SyncConn, name: str, where: str) -> bool:
    create = sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0")
    try:
        conn.execute(create.format(sql.Identifier(name)))
    except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        return False  # another process was quicker
    except psycopg.errors.InsufficientPrivilege:
        raise BadSetup(
            f"The database {where} does not exist, and this role may not create it. Let an "
            f"administrator run: CREATE DATABASE {name} ENCODING 'UTF8'."
        ) from None
    return True


def with_database(settings: Settings, name: str) -> Settings:
    """The same settings with another database of the same server; a URL stays a URL."""
    url = settings.database_url
    if "://" in url:
        url = urlsplit(url)._replace(path=f"/{quote(name)}").geturl()
    else:
        url = make_conninfo(url, dbname=name)
    return settings.model_copy(update={"database_url": url})


def drop_database(settings: Settings) -> None:
    """Drop the database of `settings`, its connections included; nothing if it is gone already."""
    name = str(conninfo_to_dict(settings.database_url)["dbname"])
    with connect(with_database(settings, "postgres")) as conn:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        conn.execute(drop.format(sql.Identifier(name)))


@contextmanager
def blame(settings: Settings) -> Iterator[None]:
    """Turn connection faults, time-outs and shutdowns of Postgres into `BadWorld`, a schema that
    is not there into `BadSetup`."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as e:
        raise BadSetup(
            f"The schema at {place(settings.database_url)} is not the one that this program needs "
            f"({e.diag.message_primary}). Run `handoff db migrate`."
        ) from e
    except psycopg.errors.LockNotAvailable as e:
        raise LockBusy(
            f"A lock at {place(settings.database_url)} was not to be had in time: "
            f"{e.diag.message_primary}."
        ) from e
    except (
        psycopg.OperationalError,
        psycopg.InterfaceError,
        psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.IdleInTransactionSessionTimeout,
        PoolTimeout,
        TimeoutError,
    ) as e:
        # Only the first line: Postgres quotes row values in the lines that follow.
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise BadWorld(
            f"Postgres at {place(settings.database_url)} does not serve: {reason}."
        ) from e


@asynccontextmanager
async def pooled(
    pool: Pool, settings: Settings, *, deadline_s: float | None = None
) -> AsyncIterator[Conn]:
    """A connection from `pool`, with the faults of `blame`.

    `deadline_s` bounds the whole block by this process's own clock: a server that is stopped keeps
    no statement time-out, and its kernel still acknowledges.
    """
    with blame(settings):
        async with asyncio.timeout(deadline_s), pool.connection() as conn:
            yield conn
