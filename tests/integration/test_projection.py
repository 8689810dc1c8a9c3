"""The projection on a real Postgres: exactly once, whatever is repeated, late, killed or broken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

from schemas.state import Status
from streams.config import Settings
from streams.errors import BadWorld
from streams.postgres import Pool, connect, open_pool
from streams.state.fold import StateRecord
from streams.state.projector import Applied, Move, Moved, Projection, moves_of
from streams.state.queries import history
from tests.support.folded import verify
from tests.unit.state.records import TOPIC, TOPIC_ID, job_id, record, state

pytestmark = pytest.mark.services

LOG = [
    record(state(job_id(job), seq), offset)
    for offset, (seq, job) in enumerate((s, j) for s in (1, 2, 3) for j in range(10))
]


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    async with open_pool(settings) as opened:
        yield opened


@pytest.fixture
def projection(pool: Pool, settings: Settings) -> Projection:
    return Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)


async def apply(projection: Projection, records: Sequence[StateRecord]) -> Applied:
    return await projection.apply(records, moves_of(records, await projection.positions()))


def contents(settings: Settings) -> dict[str, list[dict[str, object]]]:
    """Every row that the projection owns, as text where times of the server do not matter."""
    tables = {
        "jobs": "SELECT * FROM jobs ORDER BY trace_id",
        "history": 'SELECT * FROM job_history ORDER BY "partition", "offset"',
        "rejects": 'SELECT "partition", "offset", key, value, reason FROM projection_rejects'
        ' ORDER BY "partition", "offset"',
        "positions": 'SELECT "partition", next_offset FROM projection_offsets ORDER BY 1',
    }
    with connect(settings) as conn:
        return {name: list(conn.execute(sql)) for name, sql in tables.items()}


async def lock_waiters(settings: Settings, *, at_least: int) -> list[int]:
    """The backends that wait for a lock, as soon as there are so many."""
    async with asyncio.timeout(60):
        with psycopg.connect(settings.database_url, autocommit=True) as conn:
            while True:
                rows = conn.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock'"
                ).fetchall()
                if len(rows) >= at_least:
                    return [int(row[0]) for row in rows]
                await asyncio.sleep(0.01)


async def test_jobs_equal_the_fold_of_the_log(projection: Projection, settings: Settings) -> None:
    applied = await apply(projection, LOG)
    assert (applied.records, applied.jobs, applied.history) == (30, 10, 30)
    assert applied.positions == await projection.positions() == {0: 30}
    with connect(settings) as conn:
        assert verify(conn, LOG).differences == ()
        job = contents(settings)["jobs"][0]
    assert job["status"] == "done"
    assert job["born_at"] == datetime.fromtimestamp(1_760_000_000.003, UTC)


async def test_a_batch_applied_twice_changes_nothing(
    projection: Projection, settings: Settings
) -> None:
    moves = moves_of(LOG, {})
    await projection.apply(LOG, moves)
    before = contents(settings)
    with pytest.raises(
        Moved, match=r"job-state\[0\] of the projection stands at 30, not at 0"
    ) as e:
        await projection.apply(LOG, moves)
    assert e.value.positions == {0: 30}
    assert contents(settings) == before


async def test_a_log_in_any_split_and_order_gives_the_same_rows(
    projection: Projection, settings: Settings
) -> None:
    rng = random.Random(7)
    order = LOG * 2
    rng.shuffle(order)
    log = [record(r.value, n, key=r.key, partition=n % 3) for n, r in enumerate(order)]
    while log:
        size = rng.randint(1, 7)
        batch, log = log[:size], log[size:]
        await apply(projection, batch)
    with connect(settings) as conn:
        verified = verify(conn, LOG)
    assert verified.differences == ()
    assert verified.jobs == 10
    assert len(contents(settings)["history"]) == 60


async def test_a_late_record_is_history_and_leaves_the_job_alone(
    projection: Projection, settings: Settings
) -> None:
    await apply(projection, LOG)
    before = contents(settings)["jobs"]
    applied = await apply(projection, [record(state(job_id(0), 1), 30)])
    assert (applied.jobs, applied.history) == (0, 1)
    assert contents(settings)["jobs"] == before


async def test_a_zombie_with_an_old_position_changes_nothing(
    projection: Projection, pool: Pool, settings: Settings
) -> None:
    zombie = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
    await apply(projection, LOG[:10])
    positions = await zombie.positions()
    await apply(projection, LOG[10:20])
    before = contents(settings)
    with pytest.raises(Moved) as e:
        await zombie.apply(LOG[10:], moves_of(LOG[10:], positions))
    assert e.value.positions == {0: 20}
    assert contents(settings) == before


async def test_a_move_of_one_partition_that_fails_undoes_those_of_all(
    projection: Projection, settings: Settings
) -> None:
    await apply(projection, LOG)
    other = record(state(job_id(50), 1), 4, partition=1)
    with pytest.raises(Moved) as e:
        await projection.apply([other], [Move(0, 29, 29), Move(1, 0, 5)])
    assert e.value.positions == {0: 30, 1: 0}
    assert await projection.positions() == {0: 30}
    assert len(contents(settings)["jobs"]) == 10


@pytest.mark.parametrize("done_before", [0, 10])
async def test_of_two_projectors_at_once_one_applies_and_the_other_is_told(
    projection: Projection, pool: Pool, settings: Settings, done_before: int
) -> None:
    twin = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
    if done_before:
        await apply(projection, LOG[:done_before])
    rest, moves = LOG[done_before:], [Move(0, done_before, 30)]
    with psycopg.connect(settings.database_url) as gate:
        # Held here, the first of them cannot finish before the second has begun.
        gate.execute("LOCK TABLE job_history IN ACCESS EXCLUSIVE MODE")
        both = [asyncio.create_task(p.apply(rest, moves)) for p in (projection, twin)]
        await lock_waiters(settings, at_least=2)
        gate.rollback()
    results = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(r).__name__ for r in results) == ["Applied", "Moved"]
    assert len(contents(settings)["history"]) == 30


async def test_a_running_projector_notices_that_its_projection_was_dropped(
    projection: Projection, settings: Settings
) -> None:
    await apply(projection, LOG[:20])
    with connect(settings) as conn:
        conn.execute("TRUNCATE jobs, projection_offsets")
    with pytest.raises(Moved) as e:
        await projection.apply(LOG[20:], [Move(0, 20, 30)])
    assert e.value.positions == {0: 0}


async def test_a_dropped_projection_is_rebuilt_and_its_history_kept(
    projection: Projection, settings: Settings
) -> None:
    await apply(projection, LOG)
    before = contents(settings)
    with connect(settings) as conn:
        conn.execute("TRUNCATE jobs, projection_offsets")
    compacted = [r for r in LOG if r.offset >= 20]
    applied = await apply(projection, compacted)
    assert (applied.jobs, applied.history) == (10, 0)
    assert contents(settings) == before


async def test_a_namesake_of_the_topic_begins_at_its_own_start(
    pool: Pool, projection: Projection, settings: Settings
) -> None:
    await apply(projection, LOG)
    namesake = Projection(pool, settings, topic=TOPIC, topic_id=uuid4())
    assert await namesake.positions() == {}
    assert await projection.positions() == {0: 30}


async def test_markers_without_records_move_the_position(projection: Projection) -> None:
    applied = await projection.apply([], [Move(0, 0, 1), Move(3, 0, 0)])
    assert applied.positions == {0: 1, 3: 0}
    assert await projection.positions() == {0: 1, 3: 0}


async def test_a_record_outside_of_the_moves_is_refused_at_once(projection: Projection) -> None:
    with pytest.raises(ValueError, match=r"job-state\[0\]@29 lies outside"):
        await projection.apply(LOG, [Move(0, 0, 29)])
    stranger = StateRecord(TOPIC, uuid4(), 0, 0, 0, None, None)
    with pytest.raises(ValueError, match="is not of job-state"):
        await projection.apply([stranger], [Move(0, 0, 1)])
    assert await projection.positions() == {}


async def test_rejects_are_kept_whole_and_hold_nobody_up(
    projection: Projection, settings: Settings
) -> None:
    bad = [
        record(b'{"half', 1, key=b"\xff\0"),
        record(b"", 2, key=None),
        record(state(job_id(9), 1), 3, key=job_id(8).encode()),
    ]
    applied = await apply(
        projection,
        [record(state(job_id(0), 1), 0), *bad, record(None, 4), record(state(job_id(1), 1), 5)],
    )
    assert (applied.jobs, applied.tombstones) == (2, 1)
    assert [r.record for r in applied.rejected] == bad
    kept = contents(settings)["rejects"]
    assert [(r["offset"], r["key"], r["value"]) for r in kept] == [
        (r.offset, r.key, r.value) for r in bad
    ]
    assert kept[2]["reason"] == "the record's key is not its traceId"
    assert applied.positions == {0: 6}


async def test_every_valid_payload_can_be_stored_and_read_back(
    projection: Projection, settings: Settings
) -> None:
    data = {"nul": "a\0b", "big": 2**80, "text": 'é "\\u0000" \\ \t\n☃', "deep": [[[{}]]]}
    odd = state(
        job_id(0),
        1,
        data=data,
        to=('a"b', "c\\d", "{e,f}", ""),
        error={"kind": "x", "message": "\0"},
        usage={"tokens": 2**70},
        status=Status.WAITING,
    )
    log = [record(odd, 0), record(state(job_id(1), 1, data=None, timing=None, consumed=None), 1)]
    await apply(projection, log)
    with connect(settings) as conn:
        assert verify(conn, log).differences == ()
        hop = history(conn, job_id(0))[0]
        assert (hop.data, hop.to, hop.usage) == (data, odd.to, odd.usage)
        assert history(conn, job_id(1))[0].timing is None


async def test_a_backend_that_dies_in_the_middle_leaves_nothing_behind(
    projection: Projection, settings: Settings
) -> None:
    await apply(projection, LOG[:10])
    before = contents(settings)
    with psycopg.connect(settings.database_url) as gate:
        # Positions and history are written when the batch reaches this lock.
        gate.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        applying = asyncio.create_task(projection.apply(LOG[10:], [Move(0, 10, 30)]))
        (pid,) = await lock_waiters(settings, at_least=1)
        gate.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        with pytest.raises(BadWorld, match="does not serve"):
            await applying
        gate.rollback()
    assert contents(settings) == before
    assert (await projection.apply(LOG[10:], [Move(0, 10, 30)])).history == 20


async def test_a_call_after_an_unknown_outcome_finds_out(
    projection: Projection, settings: Settings
) -> None:
    moves = moves_of(LOG, {})
    await projection.apply(LOG, moves)  # as if the reply to its commit had been lost
    with pytest.raises(Moved) as e:
        await projection.apply(LOG, moves)
    assert e.value.positions == {0: 30}
    with connect(settings) as conn:
        assert verify(conn, LOG).differences == ()


async def test_verify_names_what_is_missing_extra_and_different(
    projection: Projection, settings: Settings
) -> None:
    await apply(projection, LOG)
    with connect(settings) as conn:
        conn.execute("DELETE FROM jobs WHERE trace_id = %s", (job_id(1),))
        conn.execute("UPDATE jobs SET stage = 'lost' WHERE trace_id = %s", (job_id(2),))
        conn.execute("UPDATE jobs SET trace_id = %s WHERE trace_id = %s", ("f" * 32, job_id(3)))
        found = {str(d) for d in verify(conn, LOG).differences}
    assert found == {
        f"Job {job_id(1)} is only in the log.",
        f"Job {job_id(2)}: stage is 'act' in the log and 'lost' in Postgres.",
        f"Job {job_id(3)} is only in the log.",
        f"Job {'f' * 32} is only in Postgres.",
    }
