"""Goal: what the rules promise in memory (`tests/unit/orchestration`) holds for runs in Postgres.

Method: the same made-up logs, read by an owner that crashes and by zombies, on a real Postgres; the
turns and the rows are those of a calm reading in memory.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

from schemas.state import Status
from streams.config import Settings
from streams.joins.book import Incoming
from streams.joins.wire import Arrival
from streams.orchestration.journal import RunTurn
from streams.orchestration.rows import RunRows
from streams.orchestration.wire import Began, Beginning, Sent
from streams.postgres import Pool, open_pool
from streams.runtime.join_rows import AgentRows
from streams.signals import Signal
from tests.support.join_log import Move, moves
from tests.support.programs import Op, Program
from tests.support.run_log import PARENTS, Log, calmly, logs, player, run, told

pytestmark = pytest.mark.services

TOPIC_ID = UUID(int=7)


async def in_postgres(
    settings: Settings, log: Log, plan: list[Move]
) -> tuple[list[RunTurn], list[tuple[Any, ...]]]:
    async with open_pool(settings) as pool:
        rows = AgentRows(pool, settings, "flow", TOPIC_ID, player())

        async def apply(batch: Any) -> list[RunTurn]:
            return [t for t in await rows.apply(batch) if isinstance(t, RunTurn)]

        turns = await run(log, plan, apply)
        async with pool.connection() as conn:
            cursor = await conn.execute(
                "SELECT parent, seq, step, status, commands, calls, waits FROM runs"
                " ORDER BY parent, seq"
            )
            found = [tuple(row.values()) for row in await cursor.fetchall()]
    return turns, found


def emptied(settings: Settings) -> None:
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute("TRUNCATE runs, run_events, run_commands, joins, join_arrivals")


@given(log=logs(), plan=moves)
@examples(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_batches_crashes_and_zombies_change_nothing(
    settings: Settings, log: Log, plan: list[Move]
) -> None:
    emptied(settings)
    wanted, calm = asyncio.run(calmly(log))
    got, rows = asyncio.run(in_postgres(settings, log, plan))
    assert told(got) == told(wanted)
    assert rows == calm.rows()


def test_any_text_and_any_bytes_are_kept_as_they_are(settings: Settings) -> None:
    """Quotes, braces, backslashes and what looks like NULL, in names, ids and payloads."""
    name = 'a "quoted", {braced} \\name\\, NULL'
    call = Op(kind="call", name="a", n=3)
    ops = (Op(kind="signal", name=name), call, Op(kind="signal", name="NULL"), call)
    began = Began(
        1, 5, Beginning(stage="machine", first_child=0), Program(ops=ops).model_dump_json().encode()
    )
    records = [
        began,
        Sent('x"\\', name, Signal(name, "\\x00 ü {}").to_json()),
        Arrival(0, Status.DONE, 2, b'{"seen": 1}'),
        Sent("NULL", "NULL", Signal("NULL").to_json()),
    ]
    places = [Incoming(PARENTS[0], (0, n), record, n) for n, record in enumerate(records)]
    log = Log(tuple(places), (None,) * len(records))
    wanted, calm = asyncio.run(calmly(log))
    assert [len(t.asked) for t in wanted] == [1, 1, 1, 1]
    # At last a zombie, which must not change what can be read either.
    plan = [*[Move(1, False, False, 0)] * 4, Move(9, lost=False, zombie=True, back=2)]
    got, rows = asyncio.run(in_postgres(settings, log, plan))
    assert told(got) == told(wanted)
    assert rows == calm.rows()


def test_a_zombie_and_its_successor_that_take_a_signal_at_once_keep_it_once(
    settings: Settings,
) -> None:
    """The job has no run yet whose row they could lock; the successor begins it in that batch."""
    value = Signal("go").to_json()
    began = Began(1, 5, Beginning(stage="machine", first_child=0), b'{"ops":[]}')
    sent = Incoming(PARENTS[0], (0, 0), Sent("x", "go", value), 1)
    batch = [sent, Incoming(PARENTS[0], (0, 1), began, 2)]
    rows = RunRows("flow", TOPIC_ID, player())
    blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"

    async def zombie(pool: Pool) -> None:
        async with pool.connection() as conn, conn.transaction():
            await rows.apply(conn, [sent])

    async def both() -> list[dict[str, Any]]:
        async with open_pool(settings) as pool, pool.connection() as conn:
            name = conn.info.dbname
            async with conn.transaction():
                await rows.apply(conn, batch)
                late = asyncio.create_task(zombie(pool))
                async with pool.connection() as other:
                    while not await (await other.execute(blocked, (name,))).fetchone():
                        assert not late.done(), "it waits for the other"
            await late
            found = await conn.execute("SELECT run, kind FROM run_events ORDER BY position")
            return list(await found.fetchall())

    # The run ends at once, and leaves the signal for the next.
    assert asyncio.run(both()) == [{"run": 0, "kind": "signal"}, {"run": 1, "kind": "start"}]
