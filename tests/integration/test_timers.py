"""Timers on a real Kafka and Postgres: stored once, returned when due, whoever else is at it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from uuid import UUID

import psycopg
import pytest

from schemas import headers as h
from streams.config import Settings
from streams.errors import BadWorld
from streams.kafka import NewTopic, admin_client, create_topic
from streams.positions import Move, Moved
from streams.postgres import Pool, connect, load_queries, open_pool
from streams.timers.dispatcher import Dispatcher
from streams.timers.record import Timer, TimerRecord, encode
from streams.timers.sender import Sender
from streams.timers.timekeeper import Timekeeper
from tests.support.topics import Record, TopicLog

pytestmark = pytest.mark.services

TOPIC = "timers"
TOPIC_ID = UUID("5b1f7c1e-0000-4000-8000-000000000009")
LONG_AGO_MS = 1_700_000_000_000
FAR_AHEAD_MS = 4_000_000_000_000


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    async with open_pool(settings, max_size=6) as opened:
        yield opened


@pytest.fixture
def timekeeper(pool: Pool, settings: Settings) -> Timekeeper:
    return Timekeeper(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)


@pytest.fixture
def target(settings: Settings) -> Iterator[TopicLog]:
    """The topic that timers return to."""
    name = f"{settings.prefix}mail.classify"
    create_topic(settings, admin_client(settings), NewTopic(name, 1, 1))
    log = TopicLog(settings.kafka_bootstrap_servers, name)
    yield log
    log.close()


def job_id(n: int) -> str:
    return f"{n + 1:032x}"


def timer_record(
    settings: Settings, n: int, due_ms: int = LONG_AGO_MS, to: str = "mail.classify"
) -> TimerRecord:
    timer = Timer(
        due_ms,
        f"{settings.prefix}{to}",
        job_id(n),
        b'{"n":%d}' % n,
        ((h.TIMER, b"retry"), (h.SEQ, b"1"), ("x", b"\xff\x00"), ("x", None)),
    )
    _, key, value, headers = encode(timer, TOPIC)
    return TimerRecord(TOPIC, TOPIC_ID, 0, n, LONG_AGO_MS, key, value, tuple(headers))


async def store(timekeeper: Timekeeper, records: Sequence[TimerRecord]) -> None:
    at = (await timekeeper.positions()).get(0, 0)
    await timekeeper.store(records, [Move(0, at, records[-1].offset + 1)])


def pending(settings: Settings) -> list[int]:
    with connect(settings) as conn:
        rows = conn.execute('SELECT "offset" FROM timers ORDER BY "offset"').fetchall()
        return [row["offset"] for row in rows]


def came_back(target: TopicLog) -> list[Record]:
    target.advance()
    return target.records


async def test_a_due_timer_returns_as_it_was_meant_and_its_row_goes(
    timekeeper: Timekeeper, pool: Pool, settings: Settings, target: TopicLog
) -> None:
    await store(timekeeper, [timer_record(settings, 0), timer_record(settings, 1, FAR_AHEAD_MS)])
    dispatcher = Dispatcher(pool, settings)
    assert (await dispatcher.next_due() or 0) < 0
    assert await dispatcher.dispatch() == 1
    assert await dispatcher.dispatch() == 0
    [record] = came_back(target)
    assert (record.key, record.value) == (job_id(0).encode(), b'{"n":0}')
    assert record.headers == ((h.TIMER, b"retry"), (h.SEQ, b"1"), ("x", b"\xff\x00"), ("x", None))
    assert pending(settings) == [1]
    assert (await dispatcher.next_due() or 0) > 0


async def test_a_batch_stored_twice_changes_nothing(
    timekeeper: Timekeeper, settings: Settings
) -> None:
    records = [timer_record(settings, n) for n in range(3)]
    await timekeeper.store(records, [Move(0, 0, 3)])
    with pytest.raises(Moved, match="of the timekeeper stands at 3, not at 0"):
        await timekeeper.store(records, [Move(0, 0, 3)])
    assert pending(settings) == [0, 1, 2]


async def test_positions_that_were_dropped_read_the_same_rows_again(
    timekeeper: Timekeeper, settings: Settings
) -> None:
    records = [timer_record(settings, n, FAR_AHEAD_MS) for n in range(3)]
    await store(timekeeper, records)
    with connect(settings) as conn:
        conn.execute("DELETE FROM timer_offsets")
    stored = await timekeeper.store(records, [Move(0, 0, 3)])
    assert stored.timers == 0
    assert pending(settings) == [0, 1, 2]


async def test_what_is_no_timer_is_kept_and_stops_nothing(
    timekeeper: Timekeeper, settings: Settings
) -> None:
    bad = TimerRecord(TOPIC, TOPIC_ID, 0, 1, LONG_AGO_MS, b"\xff", b"\xfe", (("x", b"\x00"),))
    stored = await timekeeper.store([timer_record(settings, 0), bad], [Move(0, 0, 2)])
    assert (stored.timers, [r.reason for r in stored.rejected]) == (
        1,
        ["its header handoff_due is no time in epoch milliseconds"],
    )
    with connect(settings) as conn:
        [row] = conn.execute("SELECT * FROM timer_rejects").fetchall()
    assert (row["key"], row["value"], row["reason"]) == (
        b"\xff",
        b"\xfe",
        stored.rejected[0].reason,
    )


async def test_a_pending_timer_is_returned_by_postgres_clock_within_a_second(
    timekeeper: Timekeeper, pool: Pool, settings: Settings, target: TopicLog
) -> None:
    due_ms = int((time.time() + 1.5) * 1000)
    await store(timekeeper, [timer_record(settings, 0, due_ms)])
    dispatcher = Dispatcher(pool, settings)
    running = asyncio.create_task(dispatcher.run())
    async with asyncio.timeout(60):
        while not came_back(target):
            await asyncio.sleep(0.05)
    dispatcher.stop()
    await running
    [record] = target.records
    assert 0 <= record.timestamp_ms - due_ms < 5_000


async def test_two_dispatchers_at_once_return_each_timer_once(
    timekeeper: Timekeeper, pool: Pool, settings: Settings, target: TopicLog
) -> None:
    await store(timekeeper, [timer_record(settings, n) for n in range(6_000)])
    both = [Dispatcher(pool, settings), Dispatcher(pool, settings)]
    runs = [asyncio.create_task(d.run()) for d in both]
    async with asyncio.timeout(60):
        while pending(settings):
            await asyncio.sleep(0.05)
    for dispatcher in both:
        dispatcher.stop()
    await asyncio.gather(*runs)
    jobs = [r.job for r in came_back(target)]
    assert sorted(jobs) == sorted(job_id(n) for n in range(6_000))


async def test_a_timer_for_a_missing_topic_waits_and_holds_up_no_other(
    timekeeper: Timekeeper, pool: Pool, settings: Settings, target: TopicLog
) -> None:
    await store(timekeeper, [timer_record(settings, 0, to="gone"), timer_record(settings, 1)])
    dispatcher = Dispatcher(pool, settings)
    assert await dispatcher.dispatch() == 1
    assert [r.job for r in came_back(target)] == [job_id(1)]
    with connect(settings) as conn:
        [row] = conn.execute(
            "SELECT refusals, refused, due_at > now() AS later FROM timers"
        ).fetchall()
        assert row == {
            "refusals": 1,
            "refused": f"Topic {settings.prefix}gone does not exist.",
            "later": True,
        }
        create_topic(settings, admin_client(settings), NewTopic(f"{settings.prefix}gone", 1, 1))
        conn.execute("UPDATE timers SET due_at = now()")
    async with asyncio.timeout(60):
        while not await dispatcher.dispatch():
            with connect(settings) as conn:
                conn.execute("UPDATE timers SET due_at = now()")
    assert pending(settings) == []


async def test_a_record_that_kafka_refuses_by_its_size_waits_and_holds_up_no_other(
    timekeeper: Timekeeper, pool: Pool, settings: Settings, target: TopicLog
) -> None:
    small = f"{settings.prefix}small"
    create_topic(
        settings, admin_client(settings), NewTopic(small, 1, 1, config={"max.message.bytes": "100"})
    )
    await store(timekeeper, [timer_record(settings, 0, to="small"), timer_record(settings, 1)])
    assert await Dispatcher(pool, settings).dispatch() == 1
    assert pending(settings) == [0]
    assert [r.job for r in came_back(target)] == [job_id(1)]


async def test_a_dispatcher_whose_connection_dies_leaves_the_rows(
    timekeeper: Timekeeper,
    pool: Pool,
    settings: Settings,
    target: TopicLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await store(timekeeper, [timer_record(settings, n) for n in range(3)])
    dispatcher = Dispatcher(pool, settings)
    send = Sender.send

    def send_and_lose_postgres(self: Sender, records: object) -> object:
        sent = send(self, records)  # type: ignore[arg-type]
        with psycopg.connect(settings.database_url, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND state = 'idle in transaction'"
            )
        return sent

    monkeypatch.setattr(Sender, "send", send_and_lose_postgres)
    with pytest.raises(Exception, match="does not serve"):
        await dispatcher.dispatch()
    assert pending(settings) == [0, 1, 2], "what was not deleted is still there"
    monkeypatch.setattr(Sender, "send", send)
    assert await dispatcher.dispatch() == 3
    assert len(came_back(target)) == 6, "produced twice: the claims let one of them through"


async def test_while_kafka_is_away_timers_stay_and_return_later(
    timekeeper: Timekeeper, pool: Pool, settings: Settings, target: TopicLog
) -> None:
    await store(timekeeper, [timer_record(settings, n) for n in range(3)])
    away = Dispatcher(pool, settings.model_copy(update={"kafka_bootstrap_servers": "127.0.0.1:1"}))
    # As if it had asked for the topic before: so it comes to producing.
    away._sender._known.add(f"{settings.prefix}mail.classify")
    with pytest.raises(BadWorld, match="did not take all timers"):
        await away.dispatch()
    assert pending(settings) == [0, 1, 2]
    assert await Dispatcher(pool, settings).dispatch() == 3
    assert len(came_back(target)) == 3


async def test_a_hundred_thousand_pending_timers_cost_no_scan(
    settings: Settings, pool: Pool
) -> None:
    with connect(settings) as conn:
        conn.execute(
            'INSERT INTO timers (topic_id, "partition", "offset", due_at, trace_id, return_topic,'
            " value, headers) SELECT gen_random_uuid(), 0, n, now() + interval '1 hour',"
            " lpad(to_hex(n), 32, '0'), 't', repeat('x', 300)::bytea, '[]'"
            " FROM generate_series(1, 100000) AS n"
        )
        conn.execute("ANALYZE timers")
        queries = load_queries("streams.timers")
        limits = {"max_rows": 2_000, "max_bytes": 2**25}
        for name, values in (("next_due", {}), ("take_due", limits)):
            sql = f"EXPLAIN (ANALYZE, FORMAT TEXT) {queries[name]}"
            rows = conn.execute(sql.encode(), values).fetchall()
            plan = "\n".join(row["QUERY PLAN"] for row in rows)
            assert "using timers_by_due" in plan, plan
            assert "Seq Scan" not in plan, plan
    assert await Dispatcher(pool, settings).dispatch() == 0
