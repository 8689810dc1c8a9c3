"""Suspects on a real Postgres: who owns a step, what is finished, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from streams.config import Settings
from streams.errors import BadWorld
from streams.ledger.queries import skip_counts
from streams.ledger.suspects import Suspect, SuspectCheck, Verdict
from streams.postgres import connect, open_pool

pytestmark = pytest.mark.services

TOPIC = UUID(int=7)
RUN, DUPLICATE, FINISHED = Verdict.RUN, Verdict.DUPLICATE, Verdict.FINISHED


@pytest.fixture
async def check(settings: Settings) -> AsyncIterator[SuspectCheck]:
    async with open_pool(settings) as pool:
        yield SuspectCheck(pool, settings, "mail", "classify")


def submission(job: int, offset: int, partition: int = 0) -> Suspect:
    return Suspect(f"{job:032x}", 1, TOPIC, partition, offset, claim=True, check_finished=False)


def finish(settings: Settings, suspect: Suspect, stage: str = "classify") -> None:
    """Put a suspect's step into the history, as the projector does."""
    with psycopg.connect(settings.database_url) as conn:
        conn.execute(
            'INSERT INTO job_history (topic_id, "partition", "offset", trace_id, seq, flow, stage,'
            " status, attempts, committed_us, updated_at, consumed_topic_id, consumed_partition,"
            " consumed_offset) VALUES (%s, 0, (SELECT count(*) FROM job_history), %s, %s, 'mail',"
            " %s, 'running', 1, 0, now(), %s, %s, %s)",
            [
                UUID(int=1),
                suspect.trace_id,
                suspect.seq,
                stage,
                suspect.topic_id,
                suspect.partition,
                suspect.offset,
            ],
        )


def counts(settings: Settings) -> dict[str, int]:
    with connect(settings) as conn:
        assert all((c.flow, c.stage) == ("mail", "classify") for c in skip_counts(conn))
        return {c.reason: c.records for c in skip_counts(conn)}


async def test_the_same_record_passes_however_often_it_comes(
    check: SuspectCheck, settings: Settings
) -> None:
    batch = [submission(job, offset=job, partition=job % 3) for job in range(1, 50)]
    for _ in range(3):
        assert await check.check(batch) == [RUN] * 49
    assert counts(settings) == {}


async def test_another_record_with_the_same_id_is_the_duplicate(
    check: SuspectCheck, settings: Settings
) -> None:
    first = submission(1, 10)
    assert await check.check([first]) == [RUN]
    others = [
        first._replace(offset=11),
        first._replace(partition=1),
        first._replace(topic_id=UUID(int=8)),
    ]
    assert await check.check([*others, submission(2, 12)]) == [DUPLICATE] * 3 + [RUN]
    assert await check.check([first]) == [RUN]
    assert counts(settings) == {"duplicate": 3}


async def test_of_equal_ids_in_one_batch_the_lowest_offset_wins_wherever_it_stands(
    check: SuspectCheck,
) -> None:
    batch = [submission(1, 12), submission(2, 13), submission(1, 9), submission(1, 10)]
    assert await check.check(batch) == [DUPLICATE, RUN, RUN, DUPLICATE]


async def test_stages_and_steps_are_claimed_apart(check: SuspectCheck, settings: Settings) -> None:
    first = submission(1, 10)
    later = first._replace(seq=2, offset=11)
    assert await check.check([later, first]) == [RUN, RUN]
    assert await check.check([later, first]) == [RUN, RUN]
    async with open_pool(settings) as pool:
        enrich = SuspectCheck(pool, settings, "mail", "enrich")
        assert await enrich.check([first._replace(offset=99)]) == [RUN]


async def test_a_finished_step_is_skipped_and_counted_if_it_is_to_be_checked(
    check: SuspectCheck, settings: Settings
) -> None:
    hand_off = Suspect(f"{5:032x}", 2, TOPIC, 0, 3, claim=False, check_finished=True)
    unfinished = hand_off._replace(seq=3)
    elsewhere = hand_off._replace(trace_id=f"{6:032x}")
    finish(settings, hand_off)
    finish(settings, elsewhere, stage="enrich")
    batch = [unfinished, hand_off, elsewhere, hand_off._replace(check_finished=False)]
    assert await check.check(batch) == [RUN, FINISHED, RUN, RUN]
    assert counts(settings) == {"finished": 1}


async def test_a_group_that_was_reset_skips_its_finished_and_runs_the_rest(
    check: SuspectCheck, settings: Settings
) -> None:
    first = [submission(job, offset=job) for job in range(1, 21)]
    doubles = [submission(job, offset=100 + job) for job in (1, 20)]
    assert await check.check(first + doubles) == [RUN] * 20 + [DUPLICATE] * 2
    for each in first[:15]:
        finish(settings, each)
    again = [s._replace(check_finished=True) for s in first + doubles]
    expected = [FINISHED] * 15 + [RUN] * 5 + [FINISHED, DUPLICATE]
    assert await check.check(again) == expected
    assert counts(settings) == {"duplicate": 3, "finished": 16}


async def test_of_two_workers_that_meet_on_the_same_ids_one_runs_each(
    check: SuspectCheck, settings: Settings
) -> None:
    mine = [submission(job, offset=job) for job in range(1, 501)]
    theirs = [submission(job, offset=1_000 + job) for job in range(500, 0, -1)]
    async with open_pool(settings) as pool:
        other = SuspectCheck(pool, settings, "mail", "classify")
        one, two = await asyncio.gather(check.check(mine), other.check(theirs))
    two.reverse()
    assert [{a, b} for a, b in zip(one, two, strict=True)] == [{RUN, DUPLICATE}] * 500
    assert counts(settings) == {"duplicate": 500}


async def test_no_suspects_need_no_postgres(settings: Settings) -> None:
    closed = open_pool(settings)
    assert await SuspectCheck(closed, settings, "mail", "classify").check([]) == []


async def test_the_horizon_is_the_highest_offset_that_the_history_knows(
    check: SuspectCheck, settings: Settings
) -> None:
    assert await check.consumed_horizon(TOPIC, 0) == -1
    for offset in (4, 9, 2):
        finish(settings, submission(offset, offset))
    finish(settings, submission(50, 50, partition=1))
    assert await check.consumed_horizon(TOPIC, 0) == 9
    assert await check.consumed_horizon(TOPIC, 1) == 50
    assert await check.consumed_horizon(UUID(int=8), 0) == -1


async def test_projected_offsets_are_those_of_the_topic(
    check: SuspectCheck, settings: Settings
) -> None:
    with psycopg.connect(settings.database_url) as conn:
        for topic, partition, offset in ((TOPIC, 0, 5), (TOPIC, 3, 8), (UUID(int=8), 0, 1)):
            conn.execute(
                "INSERT INTO projection_offsets VALUES (%s, %s, %s, 'job-state')",
                [topic, partition, offset],
            )
    assert await check.projected_offsets(TOPIC) == {0: 5, 3: 8}


async def test_without_postgres_a_check_is_the_worlds_fault(settings: Settings) -> None:
    absent = settings.model_copy(
        update={
            "database_url": "postgresql://x@127.0.0.1:1/x",
            "database_timeout_s": 0.2,
        }
    )
    async with open_pool(absent) as pool:
        check = SuspectCheck(pool, absent, "mail", "classify")
        with pytest.raises(BadWorld, match=r"127\.0\.0\.1:1/x does not serve"):
            await check.check([submission(1, 1)])
