"""`handoff audit` on runs with a seeded fault: it is named, and nothing else is.

A second opinion that shares no code with the audit is asked as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from schemas import headers as h
from streams.audit import Options, audited
from streams.config import Settings
from tests.support.audits import (
    finished_run,
    forge,
    found,
    pairs,
    project,
    state_bytes,
    truncate,
)
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path) as rig:
        yield rig


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
