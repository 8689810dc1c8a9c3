"""Pruning: what is beyond the replay horizon goes, and nothing that can still be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from schemas.state import Status
from streams.config import Settings
from streams.errors import BadWorld
from streams.ledger import prune as module
from streams.ledger.prune import MARGIN, Pruner, horizon, prune
from streams.postgres import Pool, open_pool
from streams.state.projector import Projection, moves_of
from tests.support.commands import Command
from tests.support.ledger import sql
from tests.support.rig import Rig
from tests.unit.state.records import TOPIC, TOPIC_ID, job_id, record, state

pytestmark = pytest.mark.services

DONE, OPEN, FAILED, REDRIVEN, RECENT = (job_id(n) for n in range(5))


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    async with open_pool(settings) as pool:
        yield pool


@pytest.fixture
async def jobs(settings: Settings, pool: Pool) -> None:
    """Jobs in each state, each with a claim and effects, all of them older than the horizon.

    DONE is over. OPEN runs. FAILED has a dead letter; so has REDRIVEN, but is done by now. RECENT
    is over, too, but not for long.
    """
    error = {"kind": "rejected", "message": "no"}
    failed = {"status": Status.FAILED, "to": (), "error": error}
    states = [
        *(state(DONE, n) for n in (1, 2, 3)),
        state(OPEN, 1),
        state(FAILED, 1, **failed),
        state(REDRIVEN, 1, **failed),
        *(state(REDRIVEN, n) for n in (2, 3)),
        *(state(RECENT, n) for n in (1, 2, 3)),
    ]
    log = [record(s, n) for n, s in enumerate(states)]
    projection = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
    await projection.apply(log, moves_of(log, {}))
    sql(
        settings,
        "UPDATE jobs SET updated_at = now() - interval '16 d' WHERE trace_id <> %s",
        RECENT,
    )
    sql(
        settings, "UPDATE jobs SET updated_at = now() - interval '14 d' WHERE trace_id = %s", RECENT
    )
    for job in (DONE, OPEN, FAILED, REDRIVEN, RECENT):
        add_claim(settings, job, 1)
        for status in ("done", "released", "claimed", "in_doubt"):
            add_effect(settings, job, status)
    add_claim(settings, REDRIVEN, 2)


def add_claim(settings: Settings, job: str, seq: int, age: str = "16 d") -> None:
    sql(
        settings,
        'INSERT INTO claims (trace_id, stage, seq, topic_id, "partition", "offset", claimed_at)'
        " VALUES (%s, 'act', %s, gen_random_uuid(), 0, 0, now() - %s::interval)",
        job,
        seq,
        age,
    )


def add_effect(settings: Settings, job: str, status: str, age: str = "16 d") -> None:
    sql(
        settings,
        "INSERT INTO effects (key, trace_id, flow, stage, name, fingerprint, status, idempotent,"
        " slot, incarnation, leased_until, claimed_at)"
        " VALUES (%s, %s, 'f', 'act', %s, 'f', %s, false, 0, 'i', now(), now() - %s::interval)",
        f"{job}:act:0:{status}",
        job,
        status,
        status,
        age,
    )


def left(settings: Settings) -> tuple[set[tuple[str, int]], set[tuple[str, str]]]:
    claims = sql(settings, "SELECT trace_id, seq FROM claims")
    effects = sql(settings, "SELECT trace_id, status FROM effects")
    return (
        {(r["trace_id"], r["seq"]) for r in claims},
        {(r["trace_id"], r["status"]) for r in effects},
    )


def test_the_horizon_outlives_retention_by_a_segment_and_a_day(settings: Settings) -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert timedelta(days=8) == MARGIN
    assert horizon(settings, now) == datetime(2026, 1, 16, tzinfo=UTC)
    week = settings.model_copy(update={"retention_ms": 14 * 86_400_000})
    assert horizon(week, now) == datetime(2026, 1, 9, tzinfo=UTC)


@pytest.mark.usefixtures("jobs")
async def test_only_what_no_record_can_ask_for_any_more_goes(
    settings: Settings, pool: Pool
) -> None:
    claims, effects = left(settings)
    counted = await prune(pool, settings, dry_run=True)
    assert left(settings) == (claims, effects)
    pruned = await prune(pool, settings)
    assert pruned.claims == counted.claims == 2
    assert pruned.effects == counted.effects == 4
    # The claim of the step after a dead letter stays: the letter may be redriven once more.
    assert claims - left(settings)[0] == {(DONE, 1), (REDRIVEN, 1)}
    gone = {(job, status) for job in (DONE, REDRIVEN) for status in ("done", "released")}
    assert effects - left(settings)[1] == gone
    again = await prune(pool, settings)
    assert (again.claims, again.effects) == (0, 0)


@pytest.mark.usefixtures("jobs")
async def test_effects_stay_while_a_rerun_may_ask_for_them_under_their_keys(
    settings: Settings, pool: Pool
) -> None:
    # OPEN is a rerun of DONE, one of REDRIVEN is not known yet; both do their effects as before.
    for rerun, original in ((OPEN, DONE), (job_id(77), REDRIVEN)):
        sql(
            settings,
            "INSERT INTO reruns (trace_id, rerun_of, stage, label, keys_of, who)"
            " VALUES (%s, %s, 'act', '1', %s, 'anna')",
            rerun,
            original,
            original,
        )
    assert (await prune(pool, settings)).effects == 0
    # Over, but a moment ago: it can still be rerun itself.
    sql(settings, "UPDATE jobs SET status = 'done', updated_at = now() WHERE trace_id = %s", OPEN)
    assert (await prune(pool, settings)).effects == 0
    old = "UPDATE jobs SET updated_at = now() - interval '16 d' WHERE trace_id = %s"
    sql(settings, old, OPEN)
    # Its own and those of DONE.
    assert (await prune(pool, settings)).effects == 4
    assert {job for job, status in left(settings)[1] if status == "done"} == {
        FAILED,
        REDRIVEN,
        RECENT,
    }


async def test_effects_of_children_stay_while_a_rerun_of_what_forked_them_may_ask(
    settings: Settings, pool: Pool
) -> None:
    # Only DONE/1 is rerun: its own and those of its child, but no others.
    family = [DONE, f"{DONE}/1", f"{DONE}/1/0", f"{DONE}/10", f"{DONE}/2"]
    log = [record(state(job, 3), n) for n, job in enumerate(family)]
    projection = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
    await projection.apply(log, moves_of(log, {}))
    sql(settings, "UPDATE jobs SET updated_at = now() - interval '16 d'")
    for job in family:
        add_effect(settings, job, "done")
    sql(
        settings,
        "INSERT INTO reruns (trace_id, rerun_of, stage, label, keys_of, who)"
        " VALUES (%s, %s, 'act', '1', %s, 'anna')",
        OPEN,
        f"{DONE}/1",
        f"{DONE}/1",
    )
    assert (await prune(pool, settings)).effects == 3
    assert {job for job, _ in left(settings)[1]} == {f"{DONE}/1", f"{DONE}/1/0"}


@pytest.mark.usefixtures("jobs")
async def test_what_is_younger_than_the_horizon_stays(settings: Settings, pool: Pool) -> None:
    longer = settings.model_copy(update={"retention_ms": 9 * 86_400_000})
    pruned = await prune(pool, longer)
    assert (pruned.claims, pruned.effects) == (0, 0)
    # A young claim of a job that ended long ago.
    sql(settings, "UPDATE claims SET claimed_at = now() - interval '14 d'")
    sql(settings, "UPDATE effects SET claimed_at = now() - interval '14 d'")
    pruned = await prune(pool, settings)
    assert (pruned.claims, pruned.effects) == (0, 0)


@pytest.mark.usefixtures("jobs")
async def test_slices_go_on_past_rows_that_stay_and_past_equal_times(
    settings: Settings, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLICE_ROWS", 3)
    # The oldest stay, more of them than a slice has rows, and at one time.
    for seq in range(10, 20):
        add_claim(settings, OPEN, seq, age="30 d")
    sql(settings, "UPDATE claims SET claimed_at = '2020-01-01' WHERE trace_id = %s", OPEN)
    for seq in range(10, 20):
        add_claim(settings, DONE, seq, age=f"{seq + 10} d")
    pruned = await prune(pool, settings)
    assert (pruned.claims, pruned.effects) == (12, 4)
    assert {seq for job, seq in left(settings)[0] if job == OPEN} == {1, *range(10, 20)}
    assert not {seq for job, seq in left(settings)[0] if job == DONE}


@pytest.mark.usefixtures("jobs")
async def test_rows_that_somebody_holds_are_left_for_the_next_time(
    settings: Settings, pool: Pool
) -> None:
    with psycopg.connect(settings.database_url) as holder:
        holder.execute("SELECT FROM claims WHERE trace_id = %s FOR UPDATE", (DONE,))
        holder.execute("SELECT FROM effects WHERE trace_id = %s FOR UPDATE", (DONE,))
        pruned = await prune(pool, settings)
        assert (pruned.claims, pruned.effects) == (1, 2)
    pruned = await prune(pool, settings)
    assert (pruned.claims, pruned.effects) == (1, 2)


def add_join(
    settings: Settings, job: str, seq: int, *, first: int = 0, status: str = "joined", age: str
) -> None:
    """A join of two branches that closed `age` ago, as its branches came then."""
    sql(
        settings,
        "INSERT INTO joins (parent, seq, flow, forked_by, stage, first_branch, expected, rule,"
        " born_us, step, status, closed_at, forked_at)"
        " VALUES (%s, %s, 'f', 'split', 'merge', %s, 2, 'wait', 0, %s, %s,"
        " CASE WHEN %s <> 'open' THEN now() - %s::interval END, now() - %s::interval)",
        *(job, seq, first, seq, status, status, age, age),
    )
    for n in (first, first + 1):
        add_arrival(settings, job, n, age)


def add_arrival(settings: Settings, job: str, branch: int, age: str) -> None:
    sql(
        settings,
        "INSERT INTO join_arrivals (parent, branch, status, seq, value, arrived_at)"
        " VALUES (%s, %s, 'done', 1, '{}', now() - %s::interval)",
        *(job, branch, age),
    )


def kept(settings: Settings) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    joins = sql(settings, "SELECT parent, seq FROM joins")
    arrivals = sql(settings, "SELECT parent, branch FROM join_arrivals")
    return (
        {(r["parent"], r["seq"]) for r in joins},
        {(r["parent"], r["branch"]) for r in arrivals},
    )


@pytest.mark.usefixtures("jobs")
async def test_joins_go_with_their_branches_once_their_parent_is_over_and_no_others(
    settings: Settings, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLICE_ROWS", 2)
    add_join(settings, DONE, 1, age="20 d")
    add_join(settings, DONE, 3, first=2, age="18 d")
    # It came late, and not long ago: it goes when it is as old as that.
    add_arrival(settings, DONE, 4, "1 d")
    # Not over, or not long ago: a redrive, or the stage that joins, reads the results again.
    for job in (OPEN, FAILED, RECENT, job_id(88)):
        add_join(settings, job, 1, age="20 d")
    # A join of an earlier fork of a job that still waits for another.
    add_join(settings, OPEN, 3, first=2, status="open", age="17 d")
    add_join(settings, FAILED, 3, first=2, status="failed", age="17 d")
    # No fork ever expected these.
    add_arrival(settings, job_id(99), 0, "16 d")
    add_arrival(settings, job_id(99), 1, "14 d")

    before = kept(settings)
    counted = await prune(pool, settings, dry_run=True)
    assert kept(settings) == before
    pruned = await prune(pool, settings)
    assert (pruned.joins, pruned.arrivals) == (counted.joins, counted.arrivals) == (2, 5)
    joins, arrivals = kept(settings)
    assert before[0] - joins == {(DONE, 1), (DONE, 3)}
    assert before[1] - arrivals == {*((DONE, n) for n in range(4)), (job_id(99), 0)}
    assert not pruned.nothing
    assert (await prune(pool, settings)).nothing
    sql(settings, "UPDATE join_arrivals SET arrived_at = now() - interval '16 d'")
    assert (await prune(pool, settings)).arrivals == 2, "those that no join is there for"


def add_run(settings: Settings, job: str, seq: int, age: str | None, status: str) -> None:
    """With an event and a command, both 30 days old."""
    sql(
        settings,
        "INSERT INTO runs (parent, seq, flow, stage, input, first_child, born_us, step, status,"
        " ended_at) VALUES (%s, %s, 'run', 'refund', '{}', 0, 1, 2, %s, now() - %s::interval)",
        *(job, seq, status, age),
    )
    add_event(settings, job, seq, "30 d")
    sql(
        settings,
        "INSERT INTO run_commands (parent, run, n, kind, name, position)"
        " VALUES (%s, %s, 0, 'sleep', '', 1)",
        *(job, seq),
    )


def add_event(settings: Settings, job: str, run: int, age: str) -> None:
    sql(
        settings,
        "INSERT INTO run_events (parent, run, kind, ref, detail, value, at_us, topic_id,"
        " partition, \"offset\", happened_at) VALUES (%s, %s, 'signal', %s, 'go', '', 1,"
        " gen_random_uuid(), 0, 0, now() - %s::interval)",
        *(job, run, f"s{run}", age),
    )


@pytest.mark.usefixtures("jobs")
async def test_runs_go_with_their_journals_once_their_job_is_over_and_no_others(
    settings: Settings, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLICE_ROWS", 2)
    add_run(settings, DONE, 1, "20 d", "ended")
    add_run(settings, DONE, 4, "18 d", "ended")
    # Not over, or not long ago: their journals are played from the beginning, or may be redriven.
    for job, status in ((OPEN, "open"), (FAILED, "failed"), (job_id(88), "parked")):
        add_run(settings, job, 1, None, status)
    # It went on to another stage, and its job is not over.
    add_run(settings, OPEN, 9, "20 d", "ended")
    add_run(settings, RECENT, 1, "20 d", "ended")
    # Signals that nobody waited for.
    add_event(settings, job_id(99), 0, "16 d")
    add_event(settings, job_id(98), 0, "1 d")

    def left_of_runs() -> list[set[tuple[str, int]]]:
        wanted = ("parent, seq FROM runs", *(f"parent, run FROM run_{t}" for t in TABLES))
        return [{tuple(r.values()) for r in sql(settings, f"SELECT {w}")} for w in wanted]

    runs, events, commands = left_of_runs()
    counted = await prune(pool, settings, dry_run=True)
    assert left_of_runs() == [runs, events, commands]
    pruned = await prune(pool, settings)
    assert (pruned.runs, pruned.events) == (counted.runs, counted.events) == (2, 3)
    gone = {(DONE, 1), (DONE, 4)}
    assert left_of_runs() == [runs - gone, events - gone - {(job_id(99), 0)}, commands - gone]
    assert not pruned.nothing
    assert (await prune(pool, settings)).nothing


TABLES = ("events", "commands")


@pytest.mark.usefixtures("jobs")
def test_the_command_counts_or_deletes_and_says_what(settings: Settings, tmp_path: Path) -> None:
    handoff = Command(settings, tmp_path)
    counted = handoff("db", "prune", "--dry-run")
    assert counted.returncode == 0, counted.stderr
    assert "2 claims and 4 effects" in counted.stderr
    assert "would go" in counted.stderr
    assert "0 joins and 0 of their branches, 0 runs and 0 of their events" in counted.stderr
    assert "2 claims and 4 effects" in handoff("db", "prune").stderr
    assert "0 claims and 0 effects" in handoff("db", "prune").stderr
    away = handoff(
        "db",
        "prune",
        DATABASE_URL="postgresql://postgres@127.0.0.1:9/none",
        HANDOFF_DATABASE_TIMEOUT_S="1",
    )
    assert away.returncode == 3


@pytest.mark.usefixtures("jobs")
async def test_a_worker_prunes_when_it_starts_and_a_database_that_is_away_does_not_end_it(
    settings: Settings, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    faults: list[Exception] = [BadWorld("away"), RuntimeError("a bug")]
    real = module.prune

    async def faulty(pool: Pool, settings: Settings) -> module.Pruned:
        if faults:
            raise faults.pop()
        return await real(pool, settings)

    monkeypatch.setattr(module, "prune", faulty)
    pruner = Pruner(pool, settings)
    pruner.start()
    while (DONE, 1) in left(settings)[0]:
        await asyncio.sleep(0.02)
    await pruner.stop()
    await pruner.stop()


@pytest.mark.usefixtures("jobs")
def test_the_worker_of_the_projector_prunes(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        worker = rig.worker("projector")
        rig.wait(lambda: (DONE, 1) not in left(settings)[0], "old claims are gone")
        assert worker.stop() == 0
