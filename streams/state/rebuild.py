"""Builds `jobs` anew from the topic and swaps it for the old one, beside running workers.

1 lock out other rebuilds → 2 fold into a shadow, add what the history lacks → 3 compare, in one
snapshot → 4 catch up until close → 5 in one transaction: keep projectors out, fold the rest, lock
`jobs`, swap. The positions stay what they are, so projectors that waited just go on.

Failure table: infra/decisions/0005-projection.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from streams.config import Settings
from streams.crashpoints import reach
from streams.errors import BadSetup, BadWorld
from streams.kafka import AdminClient, admin_client
from streams.postgres import Conn, LockBusy, blame, connect_alone, load_queries
from streams.state.shadow import Progress, Shadow, Tally, Tell, state_topic

_SQL: Final = load_queries("streams.state")
SHADOW: Final = "jobs_rebuild"
#: So few records are folded while projectors wait.
_CLOSE_RECORDS: Final = 2_000
#: How often to come closer, at most: the projector may be faster than we are.
_ROUNDS: Final = 20
#: Somebody who reads `jobs` for long is waited for by letting others pass and asking again.
_TRIES: Final = 15
_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class Standing:
    """How far a rebuild is, for whoever must say what remains when it breaks off."""

    #: A shadow table may be there.
    built: bool = False
    #: The swap was asked for, and its answer was not seen.
    in_doubt: bool = False


async def rebuild(settings: Settings, tell: Tell, progress: Progress, standing: Standing) -> Tally:
    """Replace `jobs` by the fold of job-state; the differences that this mends are told.

    Killed at any instruction, it has changed nothing but steps added to `job_history`, and leaves
    the table `jobs_rebuild`, which the next one drops; or it has swapped.

    Raises `BadSetup` when another one runs, or `jobs` cannot be replaced; `BadWorld` when Kafka or
    Postgres does not serve, or somebody reads `jobs` for too long.
    """
    with admin_client(settings) as admin:
        async with connect_alone(settings) as conn:
            await _lock(conn)  # 1
            return await _Rebuild(settings, admin, conn, standing).run(tell, progress)


async def _lock(conn: Conn) -> None:
    row = await (await conn.execute(_SQL["lock_rebuild"])).fetchone()
    if row is None or not row["mine"]:
        raise BadSetup(
            "Another `handoff projection rebuild` is at work in this database; this one has done "
            "nothing. Wait for its end."
        )


class _Rebuild:
    def __init__(
        self, settings: Settings, admin: AdminClient, conn: Conn, standing: Standing
    ) -> None:
        self._settings, self._admin, self._conn, self._standing = settings, admin, conn, standing

    async def run(self, tell: Tell, progress: Progress) -> Tally:
        topic = state_topic(self._settings, self._admin)
        schema, self._name = await self._check_replaceable()
        shadow = self._shadow = Shadow(
            self._settings,
            self._admin,
            self._conn,
            topic,
            schema,
            SHADOW,
            tell=tell,
            progress=progress,
            mend_history=True,
        )
        positions = await shadow.positions()
        self._standing.built = True
        await shadow.create(temporary=False)
        await shadow.read_to(positions)  # 2
        async with shadow.snapshot():
            tally = await shadow.compare()  # 3
        reach("projection.shadow_built")
        await self._come_close()  # 4
        progress("swapping", 0, 1)
        await self._swap_patiently()  # 5
        progress("swapping", 1, 1)
        return tally

    async def _check_replaceable(self) -> tuple[str, str]:
        """Schema of `jobs`, and the full name of the shadow, quoted."""
        row = await (await self._conn.execute(_SQL["jobs_table"], {"shadow": SHADOW})).fetchone()
        assert row is not None, "`jobs` exists, or the query fails"
        if not row["ours"]:
            raise BadSetup(
                f"Only the owner of table jobs ({row['owner']}) or a member of that role, with "
                f"CREATE on schema {row['schema']}, can rebuild it. Set DATABASE_URL to such a one."
            )
        await self._check_nothing_hangs()
        return row["schema"], row["shadow"]

    async def _check_nothing_hangs(self) -> None:
        rows = await (await self._conn.execute(_SQL["hanging_on_jobs"])).fetchall()
        if rows:
            raise BadSetup(
                f"Table jobs cannot be replaced while this depends on it, and would be lost with "
                f"the old one: {'; '.join(row['object'] for row in rows)}. Drop it, rebuild, then "
                "make it again."
            )

    async def _come_close(self) -> None:
        shadow = self._shadow
        for _ in range(_ROUNDS):
            positions = await shadow.positions()
            behind = sum(max(0, end - shadow.at[p]) for p, end in positions.items())
            await shadow.read_to(positions)
            if behind <= _CLOSE_RECORDS:
                return

    async def _swap_patiently(self) -> None:
        for left in reversed(range(_TRIES)):
            stood = dict(self._shadow.at)
            try:
                await self._swap()
                return
            except LockBusy as e:
                # Rolled back: the shadow stands where it stood.
                self._shadow.at = stood
                self._standing.in_doubt = False
                if not left:
                    raise BadWorld(
                        f"Somebody holds table jobs or the projection's positions for long, so the "
                        f"swap was given up after {_TRIES} tries: {e.message} See pg_stat_activity."
                    ) from e
                await asyncio.sleep(_PAUSE_S)
                await self._come_close()

    async def _swap(self) -> None:
        conn = self._conn
        with blame(self._settings):
            async with conn.transaction():
                await self._replace()
        self._standing.in_doubt = self._standing.built = False

    async def _replace(self) -> None:
        conn, shadow = self._conn, self._shadow
        await conn.execute(_SQL["lock_positions_table"])
        await shadow.read_to(await shadow.positions())
        await conn.execute(_SQL["lock_jobs"])
        await self._check_nothing_hangs()
        await self._check_alike()
        await conn.execute(shadow.sql["carry_excused"])
        named = {"shadow": self._name}
        statements = []
        for query in ("shadow_rights", "index_renames"):
            rows = await (await conn.execute(_SQL[query], named)).fetchall()
            statements.append([row["statement"] for row in rows])
        rights, renames = statements
        for statement in rights:
            await conn.execute(statement)
        await conn.execute(_SQL["drop_jobs"])
        for statement in renames:
            await conn.execute(statement)
        await conn.execute(shadow.sql["rename_shadow"])
        reach("projection.swapping")
        self._standing.in_doubt = True

    async def _check_alike(self) -> None:
        """A migration may have changed `jobs` since the shadow was made after it."""
        found = await self._conn.execute(_SQL["unlike"], {"shadow": self._name})
        if rows := await found.fetchall():
            raise BadSetup(
                f"The schema of table jobs was changed meanwhile ({rows[0]['part']}); nothing was "
                "swapped. Run the rebuild again."
            )
