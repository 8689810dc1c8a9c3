"""Rows of limits on a real Postgres: what several workers take at once, and what they leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from itertools import pairwise
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from streams import BadWorld, Limit
from streams.config import Settings
from streams.limits.limit import Claim
from streams.limits.rows import LimitRows, Question
from streams.limits.schedule import LOOKAHEAD_US, Ask
from streams.postgres import Pool, open_pool
from tests.conftest import database

pytestmark = pytest.mark.services

RATE = Limit("model", rate=200)
PLACES = Limit("tenant", concurrency=3)
A, B, TENANT = ("model", "a"), ("model", "b"), ("tenant", "x")


@pytest.fixture(scope="module")
def settings(template: Settings) -> Iterator[Settings]:
    """One database for all tests here: each begins with empty tables."""
    original = str(conninfo_to_dict(template.database_url)["dbname"])
    with database(template, f"handoff_limits_{uuid4().hex[:8]}", copy_of=original) as made:
        yield made


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    change(settings, "TRUNCATE limit_keys, limit_holds")
    async with open_pool(settings, max_size=8) as opened:
        yield opened


def question(*asks: Ask, held: dict[Claim, int] | None = None, room: int = 1_000) -> Question:
    return Question(asks, room, 15_000, 1_000_000, held or {})


def change(settings: Settings, query: str, *values: object) -> list[dict[str, object]]:
    with psycopg.connect(settings.database_url, autocommit=True, row_factory=dict_row) as conn:
        cursor = conn.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []


async def test_several_who_ask_at_once_get_moments_that_are_spaced_and_of_the_servers_clock(
    pool: Pool, settings: Settings
) -> None:
    workers = [LimitRows(pool, settings, [RATE], f"{n}") for n in range(6)]
    for first in (A, B), (B, A):
        # In both orders: nobody locks another out.
        asks = [Ask((claim,), 8) for claim in first]
        answers = await asyncio.gather(*(w.ask(question(*asks)) for w in workers))
        for n, claim in enumerate(first):
            moments = sorted(at for answer in answers for at in answer.given[n].starts)
            assert len(moments) == 48, claim
            assert min(b - a for a, b in pairwise(moments)) >= RATE.spacing_us
        for answer in answers:
            starts = [at for given in answer.given for at in given.starts]
            assert answer.server_us + 15_000 <= min(starts)
            assert max(starts) <= answer.server_us + 15_000 + LOOKAHEAD_US
            assert 0 <= answer.came_us - answer.sent_us < 5_000_000
        change(settings, "UPDATE limit_keys SET booked = '{}'")


async def test_a_changed_rate_takes_what_was_given_out_by_the_other_into_account(
    pool: Pool, settings: Settings
) -> None:
    old = LimitRows(pool, settings, [RATE], "old")
    new = LimitRows(pool, settings, [Limit("model", rate=10)], "new")
    [before] = (await old.ask(question(Ask((A,), 70)))).given
    [after] = (await new.ask(question(Ask((A,), 20)))).given
    assert len(before.starts) == 70
    assert after.starts[0] - before.starts[-1] >= 110_000
    [again] = (await old.ask(question(Ask((A,), 20)))).given
    moments = sorted([*before.starts, *after.starts, *again.starts])
    assert min(b - a for a, b in pairwise(moments)) >= RATE.spacing_us


async def test_places_are_free_when_they_are_given_back_or_their_holder_is_dead(
    pool: Pool, settings: Settings
) -> None:
    one, other = (LimitRows(pool, settings, [PLACES], name) for name in ("one", "other"))
    [got] = (await one.ask(question(Ask((TENANT,), 2)))).given
    [rest] = (await other.ask(question(Ask((TENANT,), 2)))).given
    assert (len(got.starts), len(rest.starts)) == (2, 1)
    # The answer was lost, and the same is asked again: what is held is told, not added to.
    [again] = (await one.ask(question(Ask((TENANT,), 9)))).given
    assert len(again.starts) == 2
    await one.ask(question(held={TENANT: 1}))
    [more] = (await other.ask(question(Ask((TENANT,), 9), held={TENANT: 1}))).given
    assert len(more.starts) == 1
    change(settings, "UPDATE limit_holds SET leased_until = now() WHERE holder = 'other'")
    [after_death] = (await one.ask(question(Ask((TENANT,), 9), held={TENANT: 1}))).given
    assert len(after_death.starts) == 2
    await one.leave()
    assert [r["holder"] for r in change(settings, "SELECT holder FROM limit_holds")] == ["other"]


async def test_those_who_are_sent_away_by_several_come_back_one_after_the_other(
    pool: Pool, settings: Settings
) -> None:
    workers = [LimitRows(pool, settings, [RATE], f"{n}") for n in range(3)]
    asks = question(Ask((A,), 0, parks=50))
    answers = await asyncio.gather(*(w.ask(asks) for w in workers))
    wakes = sorted(at for answer in answers for at in answer.given[0].wakes)
    assert len(wakes) == 150
    assert min(b - a for a, b in pairwise(wakes)) >= RATE.spacing_us


async def test_a_row_that_was_idle_for_long_goes_and_is_made_again(
    pool: Pool, settings: Settings
) -> None:
    rows = LimitRows(pool, settings, [RATE, PLACES], "0")
    await rows.ask(question(Ask((A, TENANT), 1), Ask((B,), 1)))
    change(settings, "UPDATE limit_keys SET idle_at = now() - interval '2 hours' WHERE key <> 'b'")
    await rows.forget()
    assert [r["key"] for r in change(settings, "SELECT key FROM limit_keys")] == ["b"]
    [got] = (await rows.ask(question(Ask((A, TENANT), 1), held={TENANT: 1}))).given
    assert len(got.starts) == 1


async def test_a_lock_that_is_not_to_be_had_is_the_worlds_fault(
    pool: Pool, settings: Settings
) -> None:
    hasty = settings.model_copy(update={"database_timeout_s": 0.2})
    slow = Limit("model", rate=1, per=timedelta(minutes=1))
    async with open_pool(hasty) as quick:
        rows = LimitRows(quick, hasty, [slow], "0")
        await rows.ask(question(Ask((A,), 1)))
        async with pool.connection() as conn, conn.transaction():
            await conn.execute("SELECT FROM limit_keys FOR UPDATE")
            with pytest.raises(BadWorld):
                await rows.ask(question(Ask((A,), 1)))
        [got] = (await rows.ask(question(Ask((A,), 1)))).given
        # One was given out a moment ago.
        assert (got.starts, got.next_us is not None) == ([], True)
