"""Goal: what the rules promise in memory (`tests/unit/joins`) holds for the rows in Postgres.

Method: the same made-up logs, read by an owner that crashes and by zombies, on a real Postgres; the
turns and the rows are those of a calm reading in memory.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

from streams.config import Settings
from streams.joins import JoinRef
from streams.joins.book import Turn
from streams.joins.rows import Results
from streams.postgres import open_pool
from streams.runtime.join_rows import AgentRows
from tests.support.join_log import Log, Move, calmly, logs, moves, run, told

pytestmark = pytest.mark.services

TOPIC_ID = UUID(int=7)
Rows = dict[tuple[str, int], tuple[str, int]]


async def in_postgres(settings: Settings, log: Log, plan: list[Move]) -> tuple[list[Turn], Rows]:
    async with open_pool(settings) as pool:
        turns = await run(log, plan, AgentRows(pool, settings, "flow", TOPIC_ID).apply)
        async with pool.connection() as conn:
            cursor = await conn.execute(
                "SELECT parent, branch, status, seq FROM join_arrivals WHERE NOT late"
            )
            rows = await cursor.fetchall()
    return turns, {(r["parent"], r["branch"]): (r["status"], r["seq"]) for r in rows}


@given(log=logs(), plan=moves)
@examples(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_batches_crashes_and_zombies_change_nothing(
    settings: Settings, log: Log, plan: list[Move]
) -> None:
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute("TRUNCATE joins, join_arrivals")
    wanted, calm = calmly(log)
    got, rows = asyncio.run(in_postgres(settings, log, plan))
    assert sorted(map(told, got)) == sorted(map(told, wanted))
    assert rows == asyncio.run(calm.rows())


def test_results_are_read_in_pages_and_in_order(settings: Settings) -> None:
    """5,000 branches, some of which are large, some late, and those of another join beside them."""
    big, parent = b'"%b"' % (b"x" * 200_000), f"{1:032x}"
    with (
        psycopg.connect(settings.database_url, autocommit=True) as conn,
        conn.cursor() as cursor,
        cursor.copy(
            "COPY join_arrivals (parent, branch, status, seq, value, late) FROM STDIN"
        ) as copy,
    ):
        for n in reversed(range(6_000)):
            value = big if n % 100 == 0 else b"%d" % n
            copy.write_row((parent, n, "done", 1, value, n % 1_000 == 7))

    async def read() -> list[tuple[int, int]]:
        async with open_pool(settings) as pool:
            ref = JoinRef(parent=parent, seq=1, first=500, expected=5_000, done=5_000, failed=0)
            return [(r.number, len(r.value)) async for r in Results(pool, settings).read(ref)]

    found = asyncio.run(read())
    wanted = [n for n in range(500, 5_500) if n % 1_000 != 7]
    assert [n for n, _ in found] == wanted
    assert all(size == len(big) for n, size in found if n % 100 == 0)


def test_a_closed_join_of_an_earlier_topic_is_not_handed_on_again(settings: Settings) -> None:
    """The topic was made anew, and its offsets begin at 0 again."""
    log = Log.of_one_join(branches=2)

    async def twice() -> tuple[list[Turn], list[Turn]]:
        async with open_pool(settings) as pool:
            first = await run(log, [], AgentRows(pool, settings, "flow", TOPIC_ID).apply)
            again = await run(log, [], AgentRows(pool, settings, "flow", UUID(int=8)).apply)
            return first, again

    first, again = asyncio.run(twice())
    assert [t.outcome for t in first] == ["joined"]
    assert again == []
