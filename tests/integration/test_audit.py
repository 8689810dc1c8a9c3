"""`handoff audit` on real runs: clean ones raise nothing, each seeded fault is named and no other.

The faults are put in by the tests' own clients, as an accident or a forger would. A second opinion
that shares no code with the audit is asked as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition

from schemas import headers as h
from streams.audit import Options, Verdict, audited, run
from streams.config import Settings
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.rig import Rig, job_id
from tests.support.second_opinion import KNOWN, opinion

pytestmark = pytest.mark.services

MENDED = "tests.support.mended:flow"


def project(rig: Rig) -> None:
    """Wait until the projection has seen all of job-state."""
    topic = rig.settings.names.job_state_topic
    rig.wait(
        lambda: (
            rig.sql("SELECT count(*) AS n FROM job_history")[0]["n"]
            + rig.sql("SELECT count(*) AS n FROM projection_rejects")[0]["n"]
            >= len(rig.log(topic))
        ),
        "the projection has seen all states",
    )


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path) as rig:
        yield rig


def finished_run(rig: Rig, jobs: int = 40) -> list[str]:
    """Jobs that went the whole way, with an effect each; drained, projected, the worker stopped."""
    worker = rig.worker()
    ids = rig.submit([Job(n=n, effect="repeatable") for n in range(jobs)])
    rig.wait_results(jobs)
    rig.wait_drained()
    project(rig)
    assert worker.stop() == 0
    return ids


def found(rig: Rig, **options: Any) -> set[tuple[str, str]]:
    """(rule, job) of all findings; the second opinion agrees on what it knows."""
    with audited(rig.settings, Options(**options)) as verdict:
        mine = pairs(verdict)
        assert verdict.clean == (not mine)
    assert {x for x in mine if x[0] in KNOWN} == opinion(rig)
    return mine


def pairs(verdict: Verdict) -> set[tuple[str, str]]:
    return {(f.rule, f.job or "") for f in verdict.findings()}


def state_bytes(rig: Rig, job: str, seq: int, /, **changes: Any) -> bytes:
    """The state of a step as it lies there, with changes."""
    for record in rig.log(rig.settings.names.job_state_topic):
        state = json.loads(record.value or b"")
        if (state["traceId"], state["seq"]) == (job, seq):
            return json.dumps({**state, **changes}).encode()
    raise AssertionError(f"no step {seq} of {job}")


def forge(rig: Rig, topic: str, job: str, value: bytes, headers: Sequence[Any] = ()) -> None:
    """Write a record as somebody else."""
    servers = rig.settings.kafka_bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    producer.produce(topic, value, job.encode(), headers=list(headers))
    assert producer.flush(30) == 0


def truncate(rig: Rig, topic: str, partition: int, before: int) -> None:
    """Remove all records of a partition below an offset."""
    futures = rig.admin.delete_records([TopicPartition(topic, partition, before)])
    for future in futures.values():
        future.result(30)


# -- clean ---------------------------------------------------------------------------------------


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


# -- faults --------------------------------------------------------------------------------------


def test_a_hand_off_whose_topic_was_truncated_is_lost_unless_the_job_went_on(rig: Rig) -> None:
    finished_run(rig)
    results = [r for r in rig.records("done") if r.partition == 0]
    before = results[2].offset + 1
    truncate(rig, rig.topic("done"), 0, before)
    lost = {("hand_off_lost", r.job) for r in results if r.offset < before}
    truncate(rig, rig.topic("work"), 1, 5)
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == lost | {("topic_truncated", "")}
        (cut,) = verdict.findings("topic_truncated")
        assert (cut.topic, cut.partition, cut.offset) == (rig.topic("work"), 1, 5)
        assert verdict.horizon == {"causes_gone": 5, "hand_offs_gone": 5}
        example = next(verdict.findings("hand_off_lost"))
        assert (example.step, example.topic) == (3, rig.settings.names.job_state_topic)


def test_records_that_were_removed_before_they_were_consumed_are_told(rig: Rig) -> None:
    ids = rig.submit([Job(n=n) for n in range(40)])
    worker = rig.worker("take", "projector")
    rig.wait_drained("take")
    project(rig)
    assert worker.stop() == 0
    waiting = [r for r in rig.records("work") if r.partition == 2]
    truncate(rig, rig.topic("work"), 2, waiting[-1].offset + 1)
    with audited(rig.settings) as verdict:
        expected = {("hand_off_lost", r.job) for r in waiting} | {("removed_unread", "")}
        assert pairs(verdict) == expected
        assert verdict.jobs.running == len(ids)
        assert verdict.counts["records_in_flight"] == len(ids) - len(waiting)


def test_a_hand_off_that_was_copied_and_one_that_nobody_wrote_are_named(rig: Rig) -> None:
    ids = finished_run(rig)
    original = rig.records("done")[0]
    forge(rig, rig.topic("done"), original.job, original.value or b"", original.headers)
    stranger = job_id(7_777)
    forge(rig, rig.topic("done"), stranger, b'{"n": 1}', [(h.HOP, b"3;1700000000000000;run")])
    forge(rig, rig.topic("done"), ids[5], b'{"n": 1}', [(h.HOP, b"9;1700000000000000;run")])
    assert found(rig) == {
        ("hand_off_doubled", original.job),
        ("hand_off_without_cause", stranger),
        ("hand_off_without_cause", ids[5]),
    }


def test_a_copied_hand_off_that_was_consumed_makes_a_doubled_step(rig: Rig) -> None:
    finished_run(rig)
    original = rig.records("finish")[0]
    forge(rig, rig.topic("finish"), original.job, original.value or b"", original.headers)
    worker = rig.worker("finish", "projector")
    rig.wait_results(41)
    rig.wait_drained()
    project(rig)
    worker.stop()
    assert found(rig) == {
        ("hand_off_doubled", original.job),
        ("step_doubled", original.job),
    }


def test_forged_states_are_named_and_owe_nothing(rig: Rig) -> None:
    ids = finished_run(rig)
    topic = rig.settings.names.job_state_topic
    stranger = job_id(7_777)
    nowhere = {"topic": rig.topic("take"), "topicId": str(uuid4()), "partition": 0, "offset": 1}
    forge(rig, topic, stranger, state_bytes(rig, ids[0], 3, traceId=stranger))
    forge(rig, topic, ids[1], state_bytes(rig, ids[1], 3, seq=4))
    forge(rig, topic, ids[2], state_bytes(rig, ids[2], 3, seq=4, consumed=nowhere))
    forge(rig, topic, ids[3], state_bytes(rig, ids[3], 2))
    forge(rig, topic, ids[4], b'{"traceId": 1}')
    worker = rig.worker("projector")
    project(rig)
    worker.stop()
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == {
            ("state_without_cause", stranger),
            ("state_without_cause", ids[1]),
            ("state_without_cause", ids[2]),
            ("step_doubled", ids[3]),
            ("unreadable_state", ids[4]),
        }


def test_an_altered_a_missing_and_an_invented_row_are_named(rig: Rig) -> None:
    ids = finished_run(rig)
    stranger = job_id(7_777)
    rig.sql("UPDATE jobs SET data = '{\"n\": -1}' WHERE trace_id = %s", ids[0])
    rig.sql("UPDATE jobs SET status = 'failed' WHERE trace_id = %s", ids[1])
    rig.sql("DELETE FROM jobs WHERE trace_id = %s", ids[2])
    rig.sql(
        "INSERT INTO jobs (trace_id, flow, stage, status, seq, attempts, updated_at) "
        "VALUES (%s, 'run', 'finish', 'done', 3, 1, now())",
        stranger,
    )
    rig.sql("DELETE FROM job_history WHERE trace_id = %s AND seq = 2", ids[3])
    rig.sql("UPDATE job_history SET data = '{}' WHERE trace_id = %s AND seq = 1", ids[4])
    rig.sql(
        'INSERT INTO job_history (topic_id, "partition", "offset", trace_id, seq, flow, stage, '
        "status, attempts, committed_us, updated_at) SELECT topic_id, 0, 100000, %s, 1, flow, "
        "stage, status, 1, committed_us, updated_at FROM job_history LIMIT 1",
        ids[5],
    )
    assert found(rig) == {
        ("projection_differs", ids[0]),
        ("projection_differs", ids[1]),
        ("projection_missing", ids[2]),
        ("projection_extra", stranger),
        ("history_missing", ids[3]),
        ("history_differs", ids[4]),
        ("history_extra", ids[5]),
    }


def test_a_group_that_was_moved_past_its_work_has_lost_it(rig: Rig) -> None:
    worker = rig.worker("take", "projector")
    ids = rig.submit([Job(n=n) for n in range(40)])
    rig.wait_drained("take")
    project(rig)
    assert worker.stop() == 0
    waiting = rig.records("work")
    ends = {p: max(r.offset for r in waiting if r.partition == p) + 1 for p in range(4)}
    rig.set_committed("work", {p: (end, "") for p, end in ends.items()})
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == {("record_lost", i) for i in ids}
        assert {f.topic for f in verdict.findings()} == {rig.topic("work")}
    rig.set_committed("work", {p: (end, "what is this") for p, end in ends.items()})
    with audited(rig.settings) as verdict:
        assert ("position_unreadable", "") in pairs(verdict)


def test_a_job_that_waits_for_too_long_is_stuck_and_a_younger_one_is_in_flight(rig: Rig) -> None:
    ids = rig.submit([Job(n=n) for n in range(3)])
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert (verdict.jobs.new, verdict.jobs.in_flight, verdict.jobs.accepted) == (3, 3, 3)
    with audited(rig.settings, Options(stuck_after_s=0)) as verdict:
        assert pairs(verdict) == {("stuck", i) for i in ids}


def test_a_dead_letter_without_its_state_and_a_failure_without_its_letter_are_named(
    rig: Rig,
) -> None:
    worker = rig.worker("take", "work", "projector")
    ids = rig.submit([Job(n=n, fault="reject") for n in range(20)])
    rig.wait(lambda: len(rig.dead_letters("work")) == 20, "letters")
    rig.wait_drained("take", "work")
    project(rig)
    assert worker.stop() == 0
    letters = rig.dead_letters("work")
    topic = rig.settings.names.dead_letter_topic(rig.flow.name, "work")
    stranger = job_id(7_777)
    twice = next(r for r in letters if r.partition == 1)
    forge(rig, topic, twice.job, twice.value or b"", twice.headers)
    other = [(k, stranger.encode() if k == h.DLQ_JOB else v) for k, v in twice.headers]
    forge(rig, topic, stranger, twice.value or b"", other)
    gone = next(r for r in letters if r.partition == 0)
    truncate(rig, topic, 0, gone.offset + 1)
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == {
            ("letter_missing", gone.job),
            ("letter_without_state", stranger),
            ("letter_doubled", twice.job),
        }
        assert verdict.jobs.failed == len(ids)


def test_effects_are_held_against_the_targets_own_record(rig: Rig, tmp_path: Path) -> None:
    ids = finished_run(rig)
    record = tmp_path / "target.jsonl"
    keys = list(rig.target.effects)
    lines = [json.dumps({"key": key}) for key in keys]
    lines += [json.dumps({"what": "call", "key": "not an effect"})]
    record.write_text("\n".join(lines) + '\n{"key": "cut o')
    assert found(rig, targets=(record,)) == set()
    first, second = keys[0], keys[1]
    unknown = f"{job_id(7_777)}:work:0:mark"
    lines = [json.dumps({"key": key}) for key in [*keys[2:], first, first, unknown]]
    record.write_text("\n".join(lines) + "\n")
    with audited(rig.settings, Options(targets=(record,))) as verdict:
        assert pairs(verdict) == {
            ("target_doubled", first.split(":")[0]),
            ("target_missing", second.split(":")[0]),
            ("target_unknown", ""),
        }
        told = {f.rule: f.detail for f in verdict.findings()}
        assert told["target_unknown"].startswith(unknown)
    assert set(ids) >= {first.split(":")[0], second.split(":")[0]}


def test_effects_in_doubt_repeated_doubled_or_of_no_job_are_named(rig: Rig) -> None:
    ids = finished_run(rig)
    change = "UPDATE effects SET {} WHERE trace_id = %s"
    rig.sql(change.format("status = 'in_doubt'"), ids[0])
    dead = "status = 'claimed', leased_until = now() - interval '1 s'"
    rig.sql(change.format(f"{dead}, idempotent = false"), ids[1])
    rig.sql(change.format(dead), ids[2])
    rig.sql(change.format("calls = 2, past_unknown = true, idempotent = false"), ids[3])
    rig.sql(
        "INSERT INTO effect_actions (key, action, actor, reason, was, fence) "
        "SELECT key, 'happened_twice', 'x', 'x', 'done', 1 FROM effects WHERE trace_id = %s",
        ids[4],
    )
    rig.sql(change.format(f"trace_id = '{job_id(7_777)}'"), ids[5])
    # Called again after the first call was known not to have happened: all is well.
    rig.sql(change.format("calls = 2, past_unknown = false, idempotent = false"), ids[6])
    assert found(rig) == {
        ("effect_in_doubt", ids[0]),
        ("effect_in_doubt", ids[1]),
        ("effect_unsettled", ids[2]),
        ("effect_repeated", ids[3]),
        ("effect_doubled", ids[4]),
        ("effect_orphaned", job_id(7_777)),
    }


def test_a_projection_that_stands_still_is_behind_and_not_wrong(rig: Rig) -> None:
    worker = rig.worker("take", "work", "finish")
    rig.submit([Job(n=n) for n in range(20)])
    rig.wait_results(20)
    rig.wait_drained()
    worker.stop()
    with audited(rig.settings) as verdict:
        assert pairs(verdict) == set()
        assert verdict.counts["steps_not_projected"] == 60
    with audited(rig.settings, Options(stuck_after_s=0)) as verdict:
        assert pairs(verdict) == {("projection_behind", "")}


def test_steps_that_job_state_has_lost_are_taken_from_the_history(rig: Rig) -> None:
    """A topic that was deleted and made again stands for one that compaction has emptied."""
    finished_run(rig)
    rig.sql("UPDATE job_history SET topic_id = gen_random_uuid() WHERE seq < 3")
    rig.sql("UPDATE job_history SET committed_us = committed_us - 30 * 86400 * 1000000::bigint")
    with audited(rig.settings) as verdict:
        # The topic still has them all, so here they are there twice.
        assert {rule for rule, _ in pairs(verdict)} == {"history_missing", "step_doubled"}
        assert verdict.counts["steps_from_history"] == 80


def test_the_command_says_what_it_found_and_where(rig: Rig, tmp_path: Path) -> None:
    handoff = Command(rig.settings, tmp_path)
    ids = finished_run(rig)
    forge(rig, rig.topic("done"), job_id(7_777), b"{}", [(h.HOP, b"3;1700000000000000;run")])
    rig.sql("DELETE FROM jobs WHERE trace_id = %s", ids[0])
    shown = handoff("audit")
    assert shown.returncode == 1
    assert ids[0] in shown.stdout
    assert job_id(7_777) in shown.stdout
    assert f"{rig.topic('done')}[" in shown.stdout
    assert "hand_off_without_cause 1, projection_missing 1" in shown.stdout
    report = json.loads(handoff("audit", "-o", "json").stdout)
    assert report["found"] == {"hand_off_without_cause": 1, "projection_missing": 1}
    assert {f["job"] for f in report["findings"]} == {ids[0], job_id(7_777)}
    assert handoff("audit", "--flow", "nothing").returncode == 2
    away = handoff("audit", DATABASE_URL="postgresql://postgres@127.0.0.1:1/none")
    assert (away.returncode, "does not serve" in away.stderr) == (3, True)
    away = handoff("audit", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert away.returncode == 3, away.stderr


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
