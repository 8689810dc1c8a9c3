"""The rows of the journal on a real Postgres: what counts as a death, and what is taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import psycopg
import pytest
from psycopg.rows import dict_row

from streams.config import Settings
from streams.postgres import Pool, open_pool
from streams.runtime.account import Account, told
from streams.runtime.delivery import Delivery
from streams.runtime.journal_rows import JournalRows, Presence
from tests.unit.runtime.fakes import TOPIC_ID, FakeMessage, delivery, make_tracker

pytestmark = pytest.mark.services

GROUP = "mail.classify"
Sql = Callable[..., list[dict[str, object]]]


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    async with open_pool(settings) as opened:
        yield opened


@pytest.fixture
def sql(settings: Settings) -> Sql:
    def run(query: str, *values: object) -> list[dict[str, object]]:
        with psycopg.connect(settings.database_url, autocommit=True, row_factory=dict_row) as conn:
            cursor = conn.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    return run


def records(*offsets: int) -> list[Delivery]:
    tracker = make_tracker()
    made = [delivery(tracker, FakeMessage(b"{}", offset=offset)) for offset in offsets]
    for d in made:
        d.job_id = f"{d.offset:032x}"
    return made


def starts(sql: Sql) -> dict[object, object]:
    return {r["offset"]: r["starts"] for r in sql('SELECT "offset", starts FROM deliveries')}


class Life:
    """One process, as it writes into the tables."""

    def __init__(self, pool: Pool, settings: Settings, name: str, slot: int = 0) -> None:
        mine = settings.model_copy(update={"slot": slot})
        self.rows = JournalRows(pool, mine, name, GROUP, TOPIC_ID)
        self.presence = Presence(pool, mine, name, [GROUP])


async def test_records_without_a_past_are_written_down_and_known_ones_are_told_first(
    pool: Pool, settings: Settings, sql: Sql
) -> None:
    first, second = Life(pool, settings, "a"), Life(pool, settings, "b")
    assert await first.rows.look_or_begin(records(1, 2, 3)) == {}
    # The answer was lost, the statement is repeated.
    assert await first.rows.look_or_begin(records(1, 2, 3)) == {}
    assert starts(sql) == {1: 1, 2: 1, 3: 1}

    known = await second.rows.look_or_begin(records(3, 4, 5))
    assert {p: k.starts for p, k in known.items()} == {(0, 3): 1}
    assert starts(sql) == {1: 1, 2: 1, 3: 1}, "nothing is started before what is known has run"


async def test_one_life_counts_once_and_what_is_taken_back_is_taken_back_once(
    pool: Pool, settings: Settings, sql: Sql
) -> None:
    first, second = Life(pool, settings, "a"), Life(pool, settings, "b")
    await first.rows.begin(records(1))
    for _ in range(2):
        await second.rows.begin(records(1, 2))
    assert starts(sql) == {1: 2, 2: 1}
    for _ in range(2):
        await second.rows.undo(records(1, 2))
    assert starts(sql) == {1: 1}
    # Another life's start is not ours to take back.
    await first.rows.begin(records(3))
    await second.rows.undo(records(3))
    assert starts(sql) == {1: 1, 3: 1}
    await second.rows.settle(records(1, 3))
    assert starts(sql) == {}


async def test_a_clean_end_takes_back_its_own_starts_and_says_so(
    pool: Pool, settings: Settings, sql: Sql
) -> None:
    first, second = Life(pool, settings, "a"), Life(pool, settings, "b")
    assert not await first.presence.enter()
    await first.rows.begin(records(1, 2))
    # It dies: its slot's next process knows, and journals.
    assert await second.presence.enter()
    await second.rows.begin(records(2, 3))
    await second.presence.leave(5)
    assert starts(sql) == {1: 1, 2: 1}
    ends = {r["incarnation"]: r["clean"] for r in sql("SELECT incarnation, clean FROM workers")}
    assert ends == {"a": False, "b": True}


async def test_rows_below_the_committed_head_and_of_older_topics_are_swept(
    pool: Pool, settings: Settings, sql: Sql
) -> None:
    life = Life(pool, settings, "a")
    await life.rows.begin(records(1, 2, 3))
    await life.rows.sweep({1: 100})
    assert starts(sql) == {1: 1, 2: 1, 3: 1}
    await life.rows.sweep({0: 3})
    assert starts(sql) == {3: 1}
    sql("UPDATE deliveries SET topic_id = gen_random_uuid()")
    await life.rows.sweep({})
    assert starts(sql) == {}


async def test_records_of_the_dead_keep_the_journal_on_and_those_of_the_living_do_not(
    pool: Pool, settings: Settings, sql: Sql
) -> None:
    changed = settings.model_copy(update={"journal_s": 0.001})
    dead, alive = Life(pool, changed, "a"), Life(pool, changed, "b", slot=1)
    await dead.presence.enter()
    await alive.presence.enter()
    await dead.rows.begin(records(1))
    assert not await alive.presence.beat()
    assert await Life(pool, changed, "c").presence.enter(), "a's row is that of a dead process now"
    assert await alive.presence.beat()
    await alive.rows.settle(records(1))
    assert not await alive.presence.beat()


async def test_a_sign_of_life_tells_what_it_is_told_and_keeps_since_when(
    pool: Pool, settings: Settings, sql: Sql
) -> None:
    presence = Presence(pool, settings, "a", [GROUP], ["timers"])
    await presence.enter()

    async def beat(**paused: str | None) -> dict[str, object]:
        await presence.beat({GROUP: told(paused.get("why"), {"in_work": 3}), "timers": Account()})
        (row,) = sql("SELECT * FROM workers WHERE stage_group = %s", GROUP)
        return row

    first = await beat(why="the desk is away")
    assert (first["paused"], first["account"]) == ("the desk is away", {"in_work": 3})
    assert first["paused_since"] == first["seen_at"]
    second = await beat(why="the desk is still away")
    assert (second["paused"], second["paused_since"]) == (
        "the desk is still away",
        first["paused_since"],
    )
    over = await beat()
    assert (over["paused"], over["paused_since"]) == (None, None)
    assert sql("SELECT account FROM workers WHERE stage_group = 'timers'") == [{"account": None}]


async def test_only_the_deaths_of_stages_switch_the_journal_on(
    pool: Pool, settings: Settings
) -> None:
    await Presence(pool, settings, "a", [], ["timers"]).enter()
    assert not await Presence(pool, settings, "b", [GROUP], ["timers"]).enter()
    assert await Presence(pool, settings, "c", [GROUP], ["timers"]).enter()


async def test_nobody_is_declared_dead_by_one_who_was_away_itself(
    pool: Pool, settings: Settings, sql: Sql
) -> None:
    one, other = Life(pool, settings, "a"), Life(pool, settings, "b", slot=1)
    await one.presence.enter()
    await other.presence.enter()
    # Postgres was away: nobody could be seen.
    sql("UPDATE workers SET seen_at = now() - interval '1 hour'")
    assert not await one.presence.beat()
    # It was only the other one.
    assert await one.presence.beat()
    assert sql("SELECT incarnation FROM workers WHERE NOT clean") == [{"incarnation": "b"}]
    # And it lives: it takes its row back. Its death is no reason to journal any more.
    assert not await other.presence.beat()
    assert sql("SELECT * FROM workers WHERE ended_at IS NOT NULL") == []
