"""`handoff projection verify|rebuild` on real services, beside running workers and over kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from schemas.state import Status
from streams.config import Settings
from streams.kafka import admin_client, change_topic_config
from streams.postgres import connect
from streams.state import rebuild as rebuilding
from streams.state.shadow import Shadow
from tests.support import forked
from tests.support.commands import Command, Completed
from tests.support.flows import Job
from tests.support.folded import verify as verify_in_memory
from tests.support.judge import assert_all_done_once, assert_projection_is_the_fold
from tests.support.projected import project, read_states, write_states
from tests.support.rig import Rig
from tests.support.worker import environment
from tests.unit.state.records import job_id, state

pytestmark = pytest.mark.services

JOBS = 40
#: How `jobs` is made: what a swap must not change.
SHAPE = """
SELECT 'index ' || indexdef FROM pg_indexes WHERE tablename = 'jobs'
UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = 'jobs'::regclass
UNION ALL SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attacl)
    FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0
UNION ALL SELECT concat_ws(' ', relacl, relowner, reloptions) FROM pg_class
    WHERE oid = 'jobs'::regclass
UNION ALL SELECT tablename FROM pg_tables WHERE schemaname = 'public'
ORDER BY 1
"""


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, max_in_flight_records=64) as opened:
        yield opened


@pytest.fixture
def handoff(settings: Settings, tmp_path: Path) -> Command:
    return Command(settings, tmp_path)


def projected(rig: Rig) -> None:
    """`JOBS` jobs of three steps, projected."""
    steps = [state(job_id(n), seq) for seq in (1, 2, 3) for n in range(JOBS)]
    for p in range(2):
        write_states(rig, [s for s in steps if int(s.trace_id, 16) % 2 == p], partition=p)
    project(rig)


def verdict(done: Completed) -> tuple[int, dict[str, Any]]:
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def shape(rig: Rig) -> list[dict[str, object]]:
    return rig.sql(SHAPE)


def assert_folded(rig: Rig, handoff: Command) -> None:
    """By the command, and by a fold in memory."""
    code, said = verdict(handoff("projection", "verify", "-o", "json"))
    assert (code, said["equal"], said["differences"]) == (0, True, [])
    with connect(rig.settings) as conn:
        assert verify_in_memory(conn, read_states(rig)).differences == ()


def test_seeded_differences_are_named_by_verify_and_mended_by_rebuild(
    rig: Rig, handoff: Command
) -> None:
    projected(rig)
    assert_folded(rig, handoff)
    # Roles belong to the whole server, PUBLIC is everywhere.
    rig.sql("GRANT SELECT ON jobs TO PUBLIC")
    rig.sql("GRANT UPDATE (stage) ON jobs TO PUBLIC")
    rig.sql("ALTER TABLE jobs SET (fillfactor = 90)")
    before, rows = shape(rig), rig.sql("SELECT * FROM jobs ORDER BY trace_id")
    missing, altered, extra, stepless = job_id(1), job_id(2), "f" * 32, job_id(3)
    rig.sql("DELETE FROM jobs WHERE trace_id = %s", missing)
    rig.sql("UPDATE jobs SET stage = 'lost', data = '{\"x\": 1}' WHERE trace_id = %s", altered)
    # Spelled otherwise, but the same.
    rig.sql("UPDATE jobs SET data = data::jsonb::text::json WHERE trace_id = %s", job_id(4))
    rig.sql(
        "INSERT INTO jobs (trace_id, flow, stage, status, seq, attempts, updated_at)"
        " VALUES (%s, 'mail', 'act', 'done', 3, 1, now())",
        extra,
    )
    rig.sql("DELETE FROM job_history WHERE trace_id = %s AND seq = 2", stepless)

    code, said = verdict(handoff("projection", "verify", "-o", "json"))
    assert code == 1
    assert not said["equal"]
    named = {(d["job"], d["field"]) for d in said["differences"]}
    assert named == {
        (missing, "job"),
        (altered, "stage"),
        (altered, "data"),
        (extra, "job"),
        (stepless, "history"),
    }
    counts = [said[n] for n in ("jobs", "missing", "altered", "extra", "history", "records")]
    assert counts == [JOBS, 1, 1, 1, 1, 3 * JOBS]
    shown = handoff("projection", "verify")
    assert shown.returncode == 1
    assert all(x in shown.stdout for x in (missing, altered, extra, stepless, "DIFFERENT"))
    assert rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"] == 3 * JOBS - 1, "untouched"

    done = handoff("projection", "rebuild")
    assert done.returncode == 0, done.stderr
    assert "1 jobs added, 1 changed, 1 removed; 1 steps added" in done.stdout
    assert rig.sql("SELECT * FROM jobs ORDER BY trace_id") == rows
    assert shape(rig) == before
    assert_folded(rig, handoff)
    assert rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"] == 3 * JOBS


def deleted(rig: Rig, before: TopicPartition) -> bool:
    (future,) = rig.admin.delete_records([before]).values()
    try:
        future.result(30)
    except KafkaException as e:
        if e.args[0].code() != KafkaError.POLICY_VIOLATION:
            raise
        return False
    return True


def test_what_compaction_may_take_is_no_difference_and_what_is_no_state_is_said(
    rig: Rig, handoff: Command
) -> None:
    taken, buried, dead = job_id(0), job_id(1), job_id(2)
    write_states(rig, [state(taken, 1), state(buried, 1), state(job_id(3), 1), (job_id(4), b"{")])
    project(rig)
    # Not yet projected: what lets compaction take the state before it, and a tombstone that does.
    write_states(rig, [(buried, None)])
    project(rig)
    write_states(rig, [state(taken, 2)])
    rig.sql(
        "INSERT INTO jobs (trace_id, flow, stage, status, seq, attempts, updated_at)"
        " VALUES (%s, 'mail', 'act', 'done', 3, 1, now())",
        dead,
    )
    name = rig.settings.names.job_state_topic
    # Compaction comes when it likes; a compacted topic does not let anybody delete.
    with admin_client(rig.settings) as admin:
        change_topic_config(rig.settings, admin, name, {"cleanup.policy": "delete"})
    # The partition's leader hears of its topic's new policy a moment later than the controller.
    rig.wait(lambda: deleted(rig, TopicPartition(name, 0, 2)), "records may be deleted")

    before = rig.sql("SELECT * FROM jobs WHERE trace_id <> %s ORDER BY trace_id", dead)
    assert len(before) == 3
    code, said = verdict(handoff("projection", "verify", "-o", "json"))
    assert (code, [d["job"] for d in said["differences"]]) == (1, [dead])
    assert (said["excused"], said["tombstones"], said["rejected"]) == (2, 1, 1)
    assert said["rejects"][0].startswith(f"{name}[0]@3: ")
    done = handoff("projection", "rebuild")
    assert done.returncode == 0, done.stderr
    assert "0 jobs added, 0 changed, 1 removed" in done.stdout
    assert rig.sql("SELECT * FROM jobs ORDER BY trace_id") == before
    project(rig)
    assert rig.sql("SELECT seq FROM jobs WHERE trace_id = %s", taken) == [{"seq": 2}]
    assert handoff("projection", "verify").returncode == 0


def test_a_rebuild_beside_a_running_worker_is_not_seen_by_anybody(
    rig: Rig, handoff: Command
) -> None:
    worker = rig.worker()
    ids = rig.submit([Job(n=n, wait_ms=400, gate="" if n < 900 else "last") for n in range(920)])
    rig.wait(lambda: len(rig.sql("SELECT 1 FROM jobs LIMIT 100")) == 100, "100 jobs are there")
    stop, counts = threading.Event(), [0]
    falls: list[tuple[int, int]] = []

    def poll() -> None:
        with psycopg.connect(rig.settings.database_url, autocommit=True) as conn:
            while not stop.is_set():
                row = conn.execute("SELECT count(*) FROM jobs").fetchone()
                assert row is not None
                if row[0] < counts[-1]:
                    falls.append((counts[-1], row[0]))
                counts.append(row[0])

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        moving = 0
        for _ in range(3):
            steps, looked = _history(rig), len(counts)
            table = _table(rig)
            done = handoff("projection", "rebuild", "-o", "json")
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            assert (said["equal"], said["differences"]) == (True, [])
            assert _table(rig) != table, "another table has taken its place"
            assert len(counts) > looked
            moving += _history(rig) > steps
            assert handoff("projection", "verify").returncode == 0
        assert moving >= 2, "the worker was at work while it was rebuilt"
        assert not rig.drained("take", "work"), "work was in flight all the time"
        rig.target.open("last")
        rig.wait_results(len(ids))
    finally:
        stop.set()
        reader.join()
    assert falls == []
    assert counts[-1] >= 900
    assert worker.running
    assert_all_done_once(rig, ids)
    assert_projection_is_the_fold(rig)
    assert handoff("projection", "verify").returncode == 0


def _history(rig: Rig) -> int:
    return int(rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"])


def _table(rig: Rig) -> int:
    return int(rig.sql("SELECT 'jobs'::regclass::oid AS oid")[0]["oid"])


@pytest.mark.parametrize("point", ["projection.shadow_built", "projection.swapping"])
def test_a_rebuild_that_is_killed_has_changed_nothing_and_the_next_one_is_whole(
    rig: Rig, handoff: Command, point: str
) -> None:
    projected(rig)
    before = shape(rig)
    rig.sql("DELETE FROM jobs WHERE trace_id = %s", job_id(1))
    rig.sql("DELETE FROM job_history WHERE trace_id = %s AND seq = 1", job_id(1))
    held, table = rig.sql("SELECT * FROM jobs ORDER BY trace_id"), _table(rig)
    settings = rig.settings.model_copy(update={"crash_point": point})
    killed = forked.run("streams.cli", "projection", "rebuild", env=environment(settings))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # The dead one's backend may still hold its locks: this waits for it.
    assert rig.sql("SELECT * FROM jobs ORDER BY trace_id") == held
    assert _table(rig) == table
    assert len(rig.sql("SELECT * FROM jobs_rebuild")) == JOBS, "the shadow remains"
    assert _history(rig) == 3 * JOBS, "the step was added before"
    # Records that came meanwhile are projected into the old table, and into the new one.
    write_states(rig, [state(job_id(JOBS), 1, status=Status.RUNNING)])
    project(rig)
    rig.wait(_no_rebuild_holds_the_lock(rig), "the dead one's session has ended")
    done = handoff("projection", "rebuild")
    assert done.returncode == 0, done.stderr
    assert "1 jobs added, 0 changed, 0 removed" in done.stdout
    assert len(rig.sql("SELECT * FROM jobs")) == JOBS + 1
    assert shape(rig) == before
    assert_folded(rig, handoff)


def _no_rebuild_holds_the_lock(rig: Rig) -> Any:
    return lambda: (
        not rig.sql(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4838212"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    )


def test_a_rebuild_that_cannot_be_is_refused_in_a_sentence(
    rig: Rig, handoff: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = handoff("projection", "rebuild")
    assert (none.returncode, "has applied nothing of" in none.stderr) == (2, True)
    projected(rig)
    before, table = shape(rig), _table(rig)
    with psycopg.connect(rig.settings.database_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(4838212)")
        second = handoff("projection", "rebuild")
    assert (second.returncode, second.stdout) == (2, "")
    assert "Another `handoff projection rebuild` is at work" in second.stderr

    rig.sql("CREATE VIEW busy AS SELECT * FROM jobs WHERE status = 'running'")
    rig.sql("CREATE TABLE notes (job text REFERENCES jobs)")
    hanging = handoff("projection", "rebuild")
    assert hanging.returncode == 2
    assert "view busy" in hanging.stderr
    assert "constraint notes_job_fkey on table notes" in hanging.stderr
    rig.sql("DROP VIEW busy")
    rig.sql("DROP TABLE notes")

    monkeypatch.setattr(rebuilding, "_TRIES", 1)
    with psycopg.connect(rig.settings.database_url) as other:
        other.execute("SELECT count(*) FROM jobs")
        held = handoff("projection", "rebuild")
    assert held.returncode == 3
    assert "Somebody holds table jobs" in held.stderr
    assert "Broke off before the swap: jobs is as it was." in held.stderr
    assert _table(rig) == table
    assert handoff("projection", "rebuild").returncode == 0
    assert (_table(rig) != table, shape(rig)) == (True, before)


def test_a_batch_that_comes_during_the_swap_is_in_the_new_table(
    rig: Rig, handoff: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the last records are folded and `jobs` is not locked yet."""
    projected(rig)
    write_states(rig, [state(job_id(JOBS), 1)])
    projector = threading.Thread(target=project, args=[rig])
    replace, read_to = rebuilding._Rebuild._replace, Shadow.read_to
    swapping: list[str] = []

    async def told_replace(self: Any) -> None:
        swapping.append("it begins")
        await replace(self)

    async def read_and_be_late(self: Shadow, positions: dict[int, int]) -> None:
        await read_to(self, positions)
        if swapping:
            projector.start()
            rig.wait(
                lambda: not projector.is_alive() or _waits_for_a_lock(rig),
                "the projector has applied its batch, or waits",
            )

    monkeypatch.setattr(rebuilding._Rebuild, "_replace", told_replace)
    monkeypatch.setattr(Shadow, "read_to", read_and_be_late)
    done = handoff("projection", "rebuild")
    monkeypatch.undo()
    projector.join()
    assert done.returncode == 0, done.stderr
    assert rig.sql("SELECT seq FROM jobs WHERE trace_id = %s", job_id(JOBS)) == [{"seq": 1}]
    assert_folded(rig, handoff)


def test_an_interrupted_rebuild_says_what_remains(rig: Rig) -> None:
    projected(rig)
    table = _table(rig)
    with psycopg.connect(rig.settings.database_url) as reader:
        # Who reads holds up the swap.
        reader.execute("SELECT count(*) FROM jobs")
        with subprocess.Popen(
            [sys.executable, "-m", "streams.cli", "projection", "rebuild"],
            env=environment(rig.settings),
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            rig.wait(lambda: _waits_for_a_lock(rig), "the swap waits for the reader")
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "Broke off before the swap: jobs is as it was. Table jobs_rebuild may remain" in said
    assert "Traceback" not in said
    assert _table(rig) == table


def _waits_for_a_lock(rig: Rig) -> bool:
    return bool(
        rig.sql(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
    )
