"""A record whose handler kills the process is dead-lettered after so many deliveries; its
neighbours in the same partition are done (public case 16, invariant I7).

Restarts are the test's: each worker is a process that ends by itself.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from schemas.state import Status
from streams.config import Settings
from tests.integration.test_flow_postgres_away import postgres_away
from tests.support import deadly
from tests.support.deadly import Deed
from tests.support.health import Probe
from tests.support.judge import doubles
from tests.support.rig import Rig, job_id
from tests.support.worker import Worker

pytestmark = pytest.mark.services

JOBS = 40
POISON = 17
#: Hangs are ended by the watchdog after so long.
WATCHDOG_S = 3.0
#: One death that nobody expected, then as many as there are deliveries with the journal on.
DEATHS = 1 + 3


def start(rig: Rig, **changes: object) -> Worker:
    (kind,) = (k for k in ("inline", "concurrent", "both") if getattr(deadly, k) is rig.flow)
    stages = [s.name for s in rig.flow.stages]
    return rig.worker(*stages, app=f"tests.support.deadly:{kind}", **changes)


def die_until_done(rig: Rig, *, deaths: int, **changes: object) -> tuple[list[int], Worker]:
    """Restart a worker as often as it dies, `deaths` times; exit codes, and the one that lives."""
    codes = []
    for _ in range(deaths):
        worker = start(rig, **changes)
        codes.append(worker.ended())
    return codes, start(rig, **changes)


def assert_only_the_killer_failed(rig: Rig, ids: list[str], killers: set[str]) -> None:
    rig.wait_drained("strike")
    states = rig.states()
    assert doubles((s.trace_id, s.seq) for s in states) == {}
    assert {s.trace_id for s in states if s.status is Status.DONE} == set(ids) - killers
    assert {s.trace_id for s in states if s.status is Status.FAILED} == killers
    assert {r.job for r in rig.records("done")} == set(ids) - killers


@pytest.mark.parametrize(
    ("flow", "deed", "code"),
    [
        (deadly.inline, "regex", 1),
        (deadly.inline, "interrupt", 130),
        (deadly.concurrent, "exit", 7),
        (deadly.concurrent, "segv", -11),
        (deadly.concurrent, "spin", 1),
    ],
    ids=["regex", "interrupt", "exit", "segv", "spin"],
)
def test_a_record_that_kills_its_worker_is_dead_lettered_and_its_neighbours_are_done(
    settings: Settings, tmp_path: Path, flow: deadly.Flow, deed: str, code: int
) -> None:
    with Rig(settings, tmp_path, flow, partitions=1, watchdog_s=WATCHDOG_S) as rig:
        deeds = [Deed(n=n, deed=deed if n == POISON else "") for n in range(JOBS)]
        ids = rig.submit(deeds)
        codes, survivor = die_until_done(rig, deaths=DEATHS)
        assert codes == [code] * DEATHS
        assert_only_the_killer_failed(rig, ids, {job_id(POISON)})

        (letter,) = rig.dead_letters("strike")
        assert letter.value == deeds[POISON].model_dump_json().encode()
        (failed,) = [s for s in rig.states() if s.status is Status.FAILED]
        assert failed.error is not None
        assert failed.error.kind == "kills_worker"
        assert "was started 3 times" in failed.error.message
        assert failed.attempts == 3
        rig.wait(lambda: rig.sql("SELECT * FROM deliveries") == [], "the journal is empty")

        more = rig.submit([Deed(n=n) for n in range(1_000, 1_020)])
        rig.wait_results(JOBS - 1 + len(more))
        assert survivor.stop() == 0


def test_a_worker_killed_at_the_points_of_the_journal_dead_letters_the_killer_once_and_no_other(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.inline, partitions=1) as rig:
        ids = rig.submit([Deed(n=n, deed="exit" if n == POISON else "") for n in range(JOBS)])
        assert start(rig).ended() == 7
        done = {s.trace_id for s in rig.states()}
        # All that was left is written down, and no handler has started.
        assert start(rig, crash_point="journal.begun").ended() == -9
        written = rig.sql("SELECT job_id, starts FROM deliveries")
        assert {row["starts"] for row in written} == {1}
        assert job_id(POISON) in (in_work := {row["job_id"] for row in written} - done)
        assert len(in_work) > 1, "work was in flight at the kill"
        assert {s.trace_id for s in rig.states()} == done
        assert start(rig).ended() == 7
        assert start(rig).ended() == 7
        # Its fate is decided, and not committed.
        assert start(rig, crash_point="journal.buried").ended() == -9
        assert rig.dead_letters("strike") == []
        assert {s.status for s in rig.states()} <= {Status.DONE}
        # The row of another that is committed may not have been deleted yet.
        thrice = rig.sql("SELECT job_id FROM deliveries WHERE starts >= 3")
        done = {s.trace_id for s in rig.states()}
        assert {row["job_id"] for row in thrice} - done == {job_id(POISON)}
        start(rig)
        rig.wait_results(JOBS - 1)
        assert_only_the_killer_failed(rig, ids, {job_id(POISON)})
        (letter,) = rig.dead_letters("strike")
        assert letter.job == job_id(POISON)
        rig.wait(lambda: rig.sql("SELECT * FROM deliveries") == [], "the journal is empty")


def test_a_worker_that_is_killed_three_times_dead_letters_no_innocent_record(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.concurrent, partitions=1) as rig:
        ids = rig.submit([Deed(n=n, gate="shut") for n in range(JOBS)])
        for in_work in (8, 8, 8):
            worker = start(rig)
            rig.wait(lambda n=in_work: rig.target.waiting("shut") == n, f"{in_work} are in work")
            worker.kill()
            rig.wait(lambda: rig.target.waiting("shut") == 0, "the process is gone")
        # Of the eight that were in work at the second death three could start again.
        starts = Counter(r["starts"] for r in rig.sql("SELECT starts FROM deliveries"))
        assert starts[2] == 3
        assert max(starts) == 2
        start(rig)
        rig.target.open("shut")
        rig.wait_results(JOBS)
        assert_only_the_killer_failed(rig, ids, set())
        assert {s.attempts for s in rig.states()} == {1}


def test_a_worker_whose_predecessors_ended_cleanly_writes_no_record_down(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.inline) as rig:
        for life in range(2):
            worker = start(rig)
            rig.submit([Deed(n=1_000 * life + n) for n in range(200)])
            rig.wait_results(200 * (life + 1))
            assert worker.stop() == 0
        assert "journal_on" not in worker.log
        assert rig.sql("SELECT clean FROM workers") == [{"clean": True}, {"clean": True}]
        # Also none that was deleted again.
        written = rig.sql("SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'deliveries'")
        assert written == [{"n_tup_ins": 0}]


def test_a_graceful_stop_takes_back_what_it_had_started(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, deadly.concurrent, partitions=1, grace_s=0.5) as rig:
        ids = rig.submit([Deed(n=n, gate="shut") for n in range(JOBS)])
        worker = start(rig)
        rig.wait(lambda: rig.target.waiting("shut") == 8, "handlers are running")
        worker.kill()
        rig.wait(lambda: rig.target.waiting("shut") == 0, "the process is gone")
        for _ in range(2):
            worker = start(rig)
            rig.wait(lambda: rig.target.waiting("shut") == 8, "handlers are running")
            assert len(rig.sql("SELECT * FROM deliveries WHERE starts = 1")) == 8
            assert worker.stop() == 0
            assert rig.sql("SELECT * FROM deliveries") == []
        rig.target.open("shut")
        start(rig)
        rig.wait_results(JOBS)
        assert_only_the_killer_failed(rig, ids, set())


def test_the_journal_ends_some_time_after_the_last_death(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.inline, worker_lost_s=3.0, journal_s=4.0) as rig:
        dies = start(rig)
        rig.wait(lambda: "worker_ready" in dies.log, "it runs")
        dies.kill()
        worker = start(rig)
        rig.wait(lambda: "journal_off" in worker.log, "the journal ends")
        assert worker.log.index("journal_on") < worker.log.index("journal_off")
        ids = rig.submit([Deed(n=n) for n in range(JOBS)])
        assert_only_the_killer_failed(rig, ids, set())


def test_handlers_wait_while_what_they_start_cannot_be_written_down(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.inline, partitions=1, database_timeout_s=2.0) as rig:
        dies = start(rig)
        rig.wait(lambda: "worker_ready" in dies.log, "it runs")
        dies.kill()
        probe = Probe()
        worker = start(rig, health_port=probe.port)
        rig.wait(lambda: probe("readyz").status == 200, "it is ready")
        assert "journal_on" in worker.log
        with postgres_away(rig.settings):
            # Hand-offs: without a journal they would need no Postgres.
            rig.hand_off("strike", [(job_id(n), 1, Deed(n=n)) for n in range(20)])
            rig.wait(lambda: "can be written down" in worker.log, "it says that it waits")
            rig.wait(lambda: "It is paused" in probe("readyz").text, "it is not ready")
            assert probe("livez").status == 200
            assert rig.states() == []
        rig.wait_results(20)
        rig.wait(lambda: probe("readyz").status == 200, "it is ready again")


def test_a_slot_that_died_and_stays_away_makes_the_others_journal(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.concurrent, partitions=2, worker_lost_s=3.0) as rig:
        stays = start(rig, slot=0)
        dies = start(rig, slot=1)
        rig.wait(lambda: "partitions=[" in dies.log, "slot 1 has joined")
        assert "journal_on" not in stays.log
        dies.kill()
        rig.wait(lambda: "journal_on" in stays.log, "slot 0 knows")
        ended = rig.sql("SELECT slot, clean FROM workers WHERE ended_at IS NOT NULL")
        assert ended == [{"slot": 1, "clean": False}]
        ids = rig.submit([Deed(n=n, gate="shut" if n == 0 else "") for n in range(JOBS)])
        rig.wait_results(JOBS - 1)
        (row,) = rig.sql("SELECT job_id, starts, slot FROM deliveries")
        assert row == {"job_id": job_id(0), "starts": 1, "slot": 0}
        rig.target.open("shut")
        rig.wait_results(JOBS)
        assert_only_the_killer_failed(rig, ids, set())


def test_a_long_run_of_another_stage_in_the_same_process_is_not_blamed(
    settings: Settings, tmp_path: Path
) -> None:
    """Each time that `strike` kills them both, `watch` is at work, too."""
    with Rig(settings, tmp_path, deadly.both, partitions=1) as rig:
        # Hand-offs: they start without a look into Postgres, so before the killer strikes.
        rig.hand_off("watch", [(job_id(n), 1, Deed(n=n, wait_ms=4_000)) for n in range(2)])
        rig.hand_off("strike", [(job_id(9), 1, Deed(n=9, wait_ms=1_500, deed="exit"))])
        deaths = 0
        while not rig.drained("watch", "strike"):
            worker = start(rig)
            worker.expected_to_run = False
            rig.wait(
                lambda w=worker: not w.running or rig.drained("watch", "strike"),
                "it dies or is done",
            )
            deaths += not worker.running
        assert deaths == DEATHS
        failed = [s.trace_id for s in rig.states() if s.status is Status.FAILED]
        assert failed == [job_id(9)]
        assert {r.job for r in rig.records("done")} == {job_id(0), job_id(1)}


def test_a_handler_that_runs_out_of_memory_fails_and_its_worker_lives(
    settings: Settings, tmp_path: Path
) -> None:
    """What the allocator can refuse is an exception; a kill by the kernel is a SIGKILL."""
    with Rig(settings, tmp_path, deadly.inline, partitions=1) as rig:
        worker = start(rig)
        ids = rig.submit([Deed(n=n, deed="memory" if n == POISON else "") for n in range(JOBS)])
        rig.wait_results(JOBS - 1)
        assert_only_the_killer_failed(rig, ids, {job_id(POISON)})
        (failed,) = [s for s in rig.states() if s.status is Status.FAILED]
        assert failed.error is not None
        assert failed.error.kind == "handler_failed"
        assert "MemoryError" in failed.error.message
        assert worker.stop() == 0
