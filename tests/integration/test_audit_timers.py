"""The audit of jobs that wait for timers: a wait is no fault, one that nobody ends is."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from streams.audit import Options, audited
from streams.config import Settings
from tests.support.audits import pairs, project
from tests.support.rig import Rig

patient = pytest.importorskip("tests.support.patient")
pytestmark = pytest.mark.services


def test_waits_and_returns_raise_nothing_and_a_timer_that_nobody_ends_is_overdue(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, patient.flow) as rig:
        worker = rig.worker(app=patient.APP)
        jobs = [patient.Ask(n=n, good_at=1 + n % 3, wait_ms=700) for n in range(40)]
        rig.submit(jobs)
        rig.wait_results(20)
        # Some wait while this one reads.
        with audited(rig.settings) as verdict:
            assert pairs(verdict) == set()
        rig.wait_results(40)
        rig.wait_drained()
        project(rig)
        with audited(rig.settings) as verdict:
            assert pairs(verdict) == set()
            assert verdict.counts["timers"] > 20
            assert verdict.jobs.done == 40
        late = rig.submit([patient.Ask(n=n, good_at=2, wait_ms=4_000) for n in range(100, 104)])
        rig.wait(lambda: len(rig.log(f"{rig.settings.prefix}timers")) >= 4 + 39, "they wait")
        assert worker.stop() == 0
        rig.wait(rig.drained, "all is consumed")
        with audited(rig.settings, Options(stuck_after_s=3_600)) as verdict:
            assert {rule for rule, _ in pairs(verdict)} <= {"projection_behind"}
            assert verdict.jobs.waiting == 4
        # Whoever could end their waits is not there.
        rig.wait(lambda: overdue(rig) == {("timer_overdue", i) for i in late}, "overdue")
        timers = f"{rig.settings.prefix}timers"
        ends = {r.partition: r.offset + 1 for r in rig.log(timers)}
        places = [TopicPartition(timers, p, end) for p, end in ends.items()]
        for future in rig.admin.delete_records(places).values():
            future.result(30)
        assert overdue(rig) >= {("timer_missing", i) for i in late}


def overdue(rig: Rig) -> set[tuple[str, str]]:
    with audited(rig.settings, Options(stuck_after_s=1)) as verdict:
        return {x for x in pairs(verdict) if x[0] != "projection_behind"}
