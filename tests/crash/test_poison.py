"""A record whose handler kills the process is dead-lettered after so many deliveries; its
neighbours in the same partition are done (public case 16, invariant I7).

Restarts are the test's: each worker is a process that ends by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.state import Status
from streams.config import Settings
from tests.support import deadly
from tests.support.deadly import Deed
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
    kind = "inline" if rig.flow is deadly.inline else "concurrent"
    return rig.worker("strike", app=f"tests.support.deadly:{kind}", **changes)


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
        (deadly.inline, "exit", 7),
        (deadly.inline, "regex", 1),
        (deadly.concurrent, "exit", 7),
        (deadly.concurrent, "segv", -11),
        (deadly.concurrent, "spin", 1),
    ],
    ids=lambda v: getattr(getattr(v, "stages", [None])[0], "is_async", None) or str(v),
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


def test_a_worker_that_is_killed_three_times_dead_letters_no_innocent_record(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, deadly.concurrent, partitions=1) as rig:
        ids = rig.submit([Deed(n=n, gate="shut") for n in range(JOBS)])
        for in_work in (8, 8, 1):
            worker = start(rig)
            rig.wait(lambda n=in_work: rig.target.waiting("shut") == n, f"{in_work} are in work")
            worker.kill()
            rig.wait(lambda: rig.target.waiting("shut") == 0, "the process is gone")
        starts = {r["offset"]: r["starts"] for r in rig.sql("SELECT * FROM deliveries")}
        assert sorted(starts.values()) == [1] * 7 + [2]
        start(rig)
        rig.target.open("shut")
        rig.wait_results(JOBS)
        assert_only_the_killer_failed(rig, ids, set())
        assert {s.attempts for s in rig.states()} == {1}
