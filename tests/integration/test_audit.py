"""`handoff audit` on runs that are well, at rest and at work: it raises nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from schemas import headers as h
from streams.audit import Options, audited, run
from streams.config import Settings
from streams.errors import BadWorld
from tests.support.audits import finished_run, pairs, project
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

MENDED = "tests.support.mended:flow"


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path) as rig:
        yield rig


def test_a_run_with_retries_dead_letters_duplicates_a_redrive_and_sigkills_raises_nothing(
    rig: Rig, tmp_path: Path
) -> None:
    jobs = [Job(n=n, wait_ms=n % 40, effect="repeatable" if n % 3 else "") for n in range(400)]
    jobs += [Job(n=n, fault="retry") for n in range(400, 420)]
    jobs += [Job(n=n, fault="reject", effect="once") for n in range(420, 440)]
    worker = rig.worker()
    rig.submit(jobs)
    rig.put("take", None, b"no JSON")
    rig.put("take", b"order-17\xff", b'{"n": 1}')
    rig.put("work", job_id(9_001).encode(), None)
    rig.put("take", job_id(9_000).encode(), b'{"n": 9000}', [(h.FLOW, b"mail"), (h.SEQ, b"7")])
    rig.flush()
    rig.wait(lambda: rig.finished() > 60, "work is under way")
    # Beside the worker, in the middle of it all, twice.
    for _ in range(2):
        with audited(rig.settings) as verdict:
            assert pairs(verdict) == set()
        worker.kill()
        worker = rig.worker()
    rig.submit(jobs[:50])
    rig.wait_results(421)
    rig.wait(lambda: len(rig.dead_letters("work")) == 20, "dead letters of work")
    rig.wait_drained()
    project(rig)
    assert worker.stop() == 0
    handoff = Command(rig.settings, tmp_path)
    assert handoff("dlq", "redrive", "--filter", "stage=work", "--yes").returncode == 0
    rig.worker("work", "finish", "projector", app=MENDED)
    rig.wait_results(441)
    rig.wait_drained()
    project(rig)
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        jobs_seen = verdict.jobs
        assert (jobs_seen.done, jobs_seen.failed, jobs_seen.in_flight) == (441, 2, 0)
        assert verdict.horizon_lines() == []
    done = handoff("audit", "-o", "json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert (report["clean"], report["findings"]) == (True, [])
    assert report["jobs"]["accepted"] == 443
    shown = handoff("audit", "--since", "1h", "--flow", "run")
    assert shown.returncode == 0, shown.stdout
    assert "nothing lost, nothing twice" in shown.stdout


def test_an_audit_beside_a_busy_worker_never_raises_an_alarm(rig: Rig) -> None:
    rig.worker()
    total, sent, audits = 6_000, 0, 0
    while rig.finished() < total:
        if sent < total and sent - rig.finished() < 2_000:
            rig.submit([Job(n=n, wait_ms=n % 20) for n in range(sent, sent + 500)])
            sent += 500
        with audited(rig.settings) as verdict:
            assert pairs(verdict) == set()
            assert verdict.jobs.lost == 0
            assert verdict.jobs.accepted >= sent - 500
            audits += 1
    assert audits > 3


#: What the audit does in this order; before each, jobs go on.
_PHASES = (
    "streams.audit.run.Snapshot.read",
    "streams.audit.run.positions",
    "streams.audit.run.TopicFacts.read_states",
    "streams.audit.run.TopicFacts.read_hand_offs",
    "streams.audit.run.TopicFacts.write_parts",
    "streams.audit.run.SecondLook.take",
)


@pytest.mark.parametrize("projecting", [True, False])
def test_jobs_that_go_on_between_any_two_readings_raise_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, projecting: bool
) -> None:
    """Goal: the order of the readings. Method: at each of them a group of jobs passes a gate, is
    handed on, finished (and projected) before the audit reads on. Any two readings exchanged, or
    the second one of job-state left out, raise an alarm; without a projector no second look in
    the history mends that."""
    rig.worker(*(() if projecting else ("take", "work", "finish")))
    calls: list[str] = []
    groups = [f"{phase} {n}" for phase in _PHASES for n in (1, 2, 3)]
    rig.submit([Job(n=n, gate=gate) for n, gate in enumerate(groups * 3)])
    rig.wait(lambda: sum(map(rig.target.waiting, groups)) == 3 * len(groups), "all are at gates")

    def hooked(phase: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(phase)
            before = rig.finished()
            rig.target.open(f"{phase} {calls.count(phase)}")
            rig.wait_results(before + 3)
            if projecting:
                project(rig)
            return original(*args, **kwargs)

        return call

    for phase in _PHASES:
        module, _, name = phase.removeprefix("streams.audit.run.").rpartition(".")
        owner = getattr(run, module) if module else run
        monkeypatch.setattr(owner, name, hooked(phase, getattr(owner, name)))
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
    assert set(calls) == set(_PHASES)


def test_a_duplicate_that_was_skipped_while_its_twin_is_at_work_is_not_lost(rig: Rig) -> None:
    rig.worker()
    job = Job(n=1, gate="open").model_dump_json().encode()
    for _ in range(2):
        rig.put("work", job_id(1).encode(), job)
    rig.flush()
    rig.wait(lambda: rig.target.waiting("open"), "one is at work")
    rig.wait(lambda: rig.sql("SELECT records FROM skips"), "the other is skipped")
    twins = rig.records("work")

    def skipped_is_consumed() -> bool:
        head, metadata = rig.committed("work")[twins[0].partition]
        # The map past the head holds it; an empty map is forty characters long.
        return head == twins[0].offset and len(metadata) > 40

    rig.wait(skipped_is_consumed, "the skip is committed")
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert verdict.jobs.new == 1


def test_an_open_transaction_is_waited_for_and_one_that_does_not_end_is_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(rig, jobs=5)
    producer = Producer(
        {
            "bootstrap.servers": rig.settings.kafka_bootstrap_servers,
            "transactional.id": f"{rig.settings.prefix}other",
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(rig.topic("done"), b"{}", b"somebody's", partition=0)
    assert producer.flush(30) == 0
    monkeypatch.setattr("streams.kafka.reading.PATIENCE_S", 1.0)
    hangs = pytest.raises(BadWorld, match=r"run.done\[0\] cannot be read past .* a transaction")
    with hangs, audited(rig.settings):
        pass
    monkeypatch.undo()
    ending = threading.Timer(1.0, producer.commit_transaction)
    ending.start()
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert verdict.counts["records"] == 5 * 4 + 1
    ending.join()


def test_since_judges_what_is_younger_and_alarms_at_nothing_older(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sources", "postgres_facts"):
        monkeypatch.setattr(f"streams.audit.{module}.SINCE_MARGIN_MS", 0)
    worker = rig.worker()
    old = rig.submit([Job(n=n) for n in range(30)])
    # These are under way when the time comes.
    across = rig.submit([Job(n=n, gate="open") for n in range(30, 50)])
    rig.wait_results(30)
    rig.wait_drained("take")
    project(rig)
    since_ms = time.time_ns() // 1_000_000 + 1
    time.sleep(0.01)
    rig.target.open("open")
    young = rig.submit([Job(n=n) for n in range(50, 70)])
    rig.wait_results(70)
    rig.wait_drained()
    project(rig)
    assert worker.stop() == 0
    with audited(rig.settings, Options(since_ms=since_ms)) as verdict:
        assert pairs(verdict) == set()
        assert verdict.counts["steps"] == 2 * len(across) + 3 * len(young)
        assert verdict.horizon == {"causes_gone": len(across)}
    rig.sql("DELETE FROM jobs WHERE trace_id IN (%s, %s)", old[0], young[0])
    with audited(rig.settings, Options(since_ms=since_ms)) as verdict:
        assert pairs(verdict) == {("projection_missing", young[0])}
