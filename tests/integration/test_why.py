"""`handoff why` on real services: each answer is brought about, then asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schemas.ids import id_from_coordinates
from schemas.state import JobError, JobState, Status
from streams.config import Settings
from streams.deadletter.reader import Reader
from streams.kafka import GroupFacts, admin_client, describe_group, partition_of
from streams.postgres import connect
from streams.why import explain, gather
from streams.why.topic_facts import Topics
from tests.support import stuck
from tests.support.audits import forge
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.rig import Rig, job_id
from tests.support.stuck import Stuck

pytestmark = pytest.mark.services

#: Signs of life every 0.1 s, and a session that soon expires.
QUICK = {"worker_lost_s": 0.6, "session_timeout_ms": 2_000}
NOBODY = "f" * 32

Found = dict[str, Any]


class Why:
    """`why(job)` is the answer as data, `why.text(job)` what a person reads."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig = rig
        self.handoff = Command(rig.settings, folder)

    def __call__(self, job: str) -> Found:
        done = self.handoff("why", job, "-o", "json")
        assert done.stdout, done.stderr
        found: Found = json.loads(done.stdout)
        assert done.returncode == (1 if found["answer"] == "not_there" else 0)
        return found

    def text(self, job: str) -> str:
        return self.handoff("why", job).stdout

    def until(self, job: str, code: str, fact: Callable[[Found], object] = bool) -> Found:
        """The answer, once it is `code` and `fact` holds for it."""
        seen: Found = {}

        def is_so() -> object:
            seen.update(self(job))
            return seen["answer"] == code and fact(seen)

        try:
            self._rig.wait(is_so, f"the answer for {job} is {code}")
        except AssertionError as e:
            raise AssertionError(f"{e}\nlast answer: {seen}") from None
        return seen


def put_state(rig: Rig, n: int, status: Status, **more: Any) -> str:
    """A state as a stage of `rig` would have written it."""
    state = JobState(
        trace_id=job_id(n),
        flow=rig.flow.name,
        stage="take",
        status=status,
        seq=1,
        attempts=1,
        updated_at=datetime.now(UTC),
        **more,
    )
    value = state.model_dump_json(by_alias=True).encode()
    forge(rig, rig.settings.names.job_state_topic, state.trace_id, value)
    return state.trace_id


def test_before_any_worker_has_run(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        why = Why(rig, tmp_path)
        first, _ = rig.submit([Job(n=0), Job(n=1)], ["ab" * 16, "ac" * 16])

        # Nobody knows it.
        nobody = why(NOBODY)
        assert (nobody["answer"], nobody["job"]) == ("not_there", NOBODY)
        assert {x["topic"]: x["begins"] for x in nobody["facts"]["looked"]} == {
            rig.topic(stage): [0, 0, 0, 0] for stage in ("take", "work", "finish")
        }
        assert f"{rig.topic('take')} (2 unfinished records read; it begins at" in nobody["why"]

        # A submission that no worker has seen, by its id and by a prefix of it.
        for asked in (first, first[:5].upper()):
            found = why(asked)
            assert (found["answer"], found["job"], found["stage"]) == ("no_worker", first, "take")
            assert found["flow"] == "run"
            assert found["do"] == ["handoff worker take --slot 0"]
        assert found["facts"]["partition"] == partition_of(first.encode(), 4)
        assert "Its submission lies before stage take" in why.text(first)
        several = why.handoff("why", "a")
        assert (several.returncode, several.stdout) == (1, "")
        assert f"Several jobs begin with a: {first}, {'ac' * 16}. Give more" in several.stderr
        assert why.handoff("why", "xyz").returncode == 1

        # One whose key is no id has the id of its place, and lies wherever its key puts it.
        rig.put("take", b"order 7", b"{}", partition=3)
        rig.flush()
        [topic] = {s.topic for s in Reader(rig.settings).spans([rig.topic("take")])}
        [at] = [r for r in rig.records("take") if r.key == b"order 7"]
        placed = id_from_coordinates(topic.topic_id, 3, at.offset)
        found = why(placed)
        assert (found["answer"], found["facts"]["partition"]) == ("no_worker", 3)

        with admin_client(rig.settings) as admin:
            topic_name = rig.topic("take")
            unknown = describe_group(rig.settings, admin, f"{topic_name}-unknown", topic_name)
        assert unknown == GroupFacts("DEAD", (), {})

        # What only job-state knows: over, without a letter, and handed on to nowhere.
        cancelled = put_state(rig, 10, Status.CANCELLED)
        error = JobError(kind="rejected", message="not wanted")
        failed = put_state(rig, 11, Status.FAILED, error=error)
        lost = put_state(rig, 12, Status.RUNNING, to=("work",))
        assert why(cancelled)["answer"] == "cancelled"
        found = why(failed)
        assert (found["answer"], found["projection_behind"] > 0) == ("failed", True)
        assert "rejected: not wanted" in found["why"]
        found = why(lost)
        assert (found["answer"], found["stage"]) == ("lost", "work")
        assert "No projector runs: handoff worker projector." in found["also"]

        # More than one cares to read.
        topics = Topics(rig.settings, limit=1)
        rig.hand_off("work", [(lost, 9, Job(n=0)), (lost, 9, Job(n=0)), (lost, 1, Job(n=0))])
        with connect(rig.settings) as conn:
            facts = gather(conn, rig.settings, lost, topics)
        assert facts.queued is not None
        assert (facts.queued.offset, facts.queued.ahead) == (None, 1)
        assert explain(facts, facts.now).code == "no_worker"
        found = why(lost)
        assert (found["answer"], found["facts"]["ahead"]) == ("no_worker", 2)


def test_in_the_life_of_a_worker_and_after_its_death(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, partitions=1, **QUICK) as rig:
        why = Why(rig, tmp_path)
        # It holds two records at a time.
        worker = rig.worker("take", "work", "finish", max_in_flight_records=2)
        held, done, doubted, later = rig.submit(
            [Job(n=0, gate="a"), Job(n=1), Job(n=2, effect="once", answer_gate="b"), Job(n=3)]
        )

        found = why.until(
            held, "in_work", lambda x: "since" in x["facts"] and x["projection_behind"]
        )
        assert "Attempt 1 is in work at stage work, in slot 0, since" in found["why"]
        assert found["facts"]["worker"]["pid"] == worker.process.pid
        assert found["facts"]["limit_s"] == 300
        assert "its last step was read from there" in found["also"]
        assert "It calls its effect mark" in why.until(doubted, "in_work")["why"]

        # Of the three before it one is finished, out of order.
        found = why.until(later, "lag", lambda x: x["facts"]["ahead"] == 2)
        [before] = [r for r in rig.records("work") if r.job == later]
        assert found["facts"]["offset"] == before.offset
        assert found["facts"]["committed"] == rig.committed("work")[0][0]
        assert found["facts"]["per_s"] == 0
        assert "It finished nothing within the last second." in found["why"]
        assert why(done)["answer"] == "done"

        worker.kill()
        found = why.until(later, "no_worker")
        assert found["do"] == ["handoff worker work --slot 0"]
        assert f"lot 0 (pid {worker.process.pid} on " in found["why"]
        assert found["facts"]["members"] == 0

        # The next life finds an effect of which nobody knows.
        worker = rig.worker()
        found = why.until(doubted, "in_doubt", lambda x: not x["projection_behind"])
        key = f"{doubted}:work:0:mark"
        assert found["do"][0].startswith(f"handoff effects resolve '{key}' --happened")
        assert [e["key"] for e in found["facts"]["effects"]] == [key]
        assert "one call, the last claimed at" in found["why"]
        resolve = ("effects", "resolve", key, "--happened", "--result", '{"n": 2}', "--yes")
        assert why.handoff(*resolve, "--reason", "seen there").returncode == 0
        found = why(doubted)
        assert found["answer"] == "dead_letter"
        assert "happened (seen there)" in found["why"]
        assert f"handoff dlq redrive {doubted}" in found["do"]
        assert why.handoff("dlq", "redrive", doubted).returncode == 0
        why.until(doubted, "done")

        bad, worse = rig.submit([Job(n=5, fault="reject"), Job(n=6, fault="reject")])
        found = why.until(bad, "dead_letter")
        assert "rejected: not wanted. Nobody has acted on it." in found["why"]
        assert found["do"][0] == f"handoff dlq show {found['facts']['letter']}"
        assert why.handoff(*found["do"][0].split()[1:]).returncode == 0
        why.until(worse, "dead_letter")
        assert why.handoff("dlq", "discard", worse, "--reason", "spam", "--yes").returncode == 0
        assert "discarded it at" in why(worse)["why"]

        assert worker.stop() == 0
        assert why.handoff("dlq", "redrive", bad).returncode == 0
        found = why(bad)
        assert found["answer"] == "no_worker", "also while its session lasts"
        assert "Its record, which was brought back, lies before stage work" in found["why"]
        assert "was stopped at" in found["why"]


def test_while_jobs_wait(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, stuck.flow, partitions=1, **QUICK) as rig:
        why = Why(rig, tmp_path)
        rig.worker("wait", "hold", "projector", app=stuck.APP)
        soon, late, retried = rig.submit(
            [
                Stuck(n=0, wait="timer", wait_ms=300),
                Stuck(n=1, wait="timer", wait_ms=3_600_000),
                Stuck(n=2, hold="retry", wait_ms=3_600_000),
            ]
        )

        found = why.until(retried, "backoff", lambda x: not x["projection_behind"])
        assert "It waits for attempt 2 of 3 at stage hold, in the worker in slot 0" in found["why"]
        assert "the desk is busy" in found["facts"]["reason"]
        left = datetime.fromisoformat(found["facts"]["until"]) - datetime.now(UTC)
        assert 3_500 < left.total_seconds() < 3_601

        found = why.until(late, "timer")
        assert not found["facts"]["stored"]
        assert "No process has ever run the timers, so it would not come back" in found["why"]
        assert found["do"] == ["handoff worker timers"]
        found = why.until(soon, "timer", lambda x: x["facts"]["overdue_s"] > 5)
        assert "No process has ever run the timers" in found["why"]

        (away,) = rig.submit([Stuck(n=3, hold="world")])
        found = why.until(away, "paused")
        assert "Stage hold is paused since" in found["why"]
        assert found["facts"]["paused"] == "the desk is away"
        since = datetime.fromisoformat(found["facts"]["since"])
        assert why(retried)["answer"] == "paused", "that comes before a wait"
        again = why.until(away, "paused")
        assert datetime.fromisoformat(again["facts"]["since"]) == since

        timers = rig.worker("timers", slot=1, app=stuck.APP)
        found = why.until(late, "timer", lambda x: x["facts"]["stored"])
        assert (found["facts"]["overdue_s"], found["do"]) == (0, [])
        # It came back, and meets the pause.
        why.until(soon, "paused")
        assert timers.stop() == 0
        with connect(rig.settings) as conn:
            conn.execute("UPDATE timers SET due_at = now() - interval '5 minutes'")
        found = why(late)
        assert f"Nobody runs the timers: slot 1 (pid {timers.process.pid} on " in found["why"]
        assert "was stopped at" in found["why"]
