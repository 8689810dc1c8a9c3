"""Goal: a reply that needs approval waits for a person, and is then sent once, or not at all.

Method: real mails on real workers and a real desk, signalled by the command; the worker is killed
while they wait. Judged by the desk's own record, the results, and the steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import agents
from agents import flow
from agents.act import plan_action
from agents.training.corpus import Row
from infra.demo.desk import Desk
from schemas.mail import Action, EnrichedMail, Filed, Mail
from schemas.state import Status
from streams.config import Settings
from streams.testing import job_context
from tests.support.commands import Command, Completed
from tests.support.judge import assert_no_step_twice
from tests.support.loop_thread import LoopThread
from tests.support.rig import Rig, job_id
from tests.unit.agents.mails import sample

pytestmark = pytest.mark.services

APP = "agents:flow"
ABOVE = 5
ASKED = 5
OTHERS = 25


class Office:
    """The mail flow with a desk, and a person at the command line."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.rig = Rig(settings, folder, flow)
        self.handoff = Command(settings, folder)
        self._desk, self._thread = Desk(), LoopThread("desk")

    def __enter__(self) -> Office:
        with ExitStack() as stack:
            self._thread.start()
            stack.callback(self._thread.end)
            url = self._thread.run(self._desk.start())
            stack.callback(lambda: self._thread.run(self._desk.stop()))
            stack.enter_context(self.rig)
            self.rig.variables |= {"HANDOFF_DESK_URL": url, "HANDOFF_APPROVAL_ABOVE": str(ABOVE)}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def stats(self) -> dict[str, int]:
        return self._thread.call(self._desk.stats)

    def filed(self, job: str) -> list[str]:
        """What the desk did for a job."""
        effects: Any = self._thread.call(lambda: self._desk.book.effects_of(job))
        return [e.kind for e in effects]

    def signal(self, *args: str) -> Completed:
        return self.handoff("signal", *args)

    def wait_standing(self, **wanted: int) -> None:
        """Until so many jobs are done, waiting …, as Postgres shows them."""

        def stand() -> bool:
            rows = self.rig.sql("SELECT status, count(*) AS n FROM jobs GROUP BY status")
            found = {row["status"]: row["n"] for row in rows}
            return found == {name: n for name, n in wanted.items() if n}

        self.rig.wait(stand, f"jobs are {wanted}")

    def waiting(self, jobs: list[str], wanted: str = "signal approval") -> bool:
        rows = self.rig.sql("SELECT parent, waits FROM runs WHERE status = 'open'")
        found = {row["parent"]: row["waits"] for row in rows}
        return all(any(w.startswith(wanted) for w in found.get(job, ())) for job in jobs)

    def result(self, job: str) -> Filed:
        (row,) = self.rig.sql("SELECT status, data FROM jobs WHERE trace_id = %s", job)
        assert row["status"] == "done"
        return Filed.model_validate(row["data"])

    def steps(self, job: str) -> list[tuple[str, Status]]:
        return [(s.stage, s.status) for s in self.rig.states() if s.trace_id == job]


@pytest.fixture
def office(settings: Settings, tmp_path: Path) -> Iterator[Office]:
    with Office(settings, tmp_path) as made:
        yield made


@cache
def mails() -> tuple[list[Row], list[Row]]:
    """Those whose reply needs approval, and some others."""
    asked: list[Row] = []
    others: list[Row] = []
    rows = sample()
    for n in range(len(rows)):
        # All kinds of mail: the sample begins with one.
        row = rows[9 * n % len(rows)]
        mail = enriched(row)
        if plan_action(mail).action is not Action.REPLY or mail.priority_points <= ABOVE:
            others.append(row)
        elif len(asked) < ASKED:
            asked.append(row)
        if len(asked) == ASKED and len(others) >= OTHERS:
            break
    return asked, others[:OTHERS]


def enriched(row: Row) -> EnrichedMail:
    job = job_context()
    return agents.enrich(agents.classify(Mail(**row), job), job)


def test_replies_above_a_threshold_wait_for_a_person(office: Office) -> None:
    rig = office.rig
    asked, others = mails()
    ids = [job_id(n << 100) for n in range(1, 1 + len(asked) + len(others))]
    early, yes, no, typo, never = ids[:5]
    over = ids[-1]

    refuses(office, (early, "approval", "true"), 1, "No job has an id that begins with")
    refuses(office, (early[:9], "approval", "true", "--flow", "mail"), 1, "by its whole id")
    refuses(office, (early, "approval", "true", "--flow", "nobody"), 2, "Nothing in flow nobody")
    said = office.signal(early, "approval", "true", "--flow", "mail", "--by", "eve")
    assert "waits for nothing now. The signal is kept until it waits for approval." in said.stderr
    assert "No job of flow mail has done so before." in said.stderr

    first = rig.worker(app=APP)
    jobs: Any = [Mail(**row) for row in (*asked, *others)]
    rig.submit(jobs, ids)
    office.wait_standing(done=len(others) + 1, waiting=4)
    rig.wait(lambda: office.waiting([yes, no, typo, never]), "the journal has what they wait for")
    assert office.stats()["effects"] == effects_of(others) + 1
    first.kill()

    refuses(office, (yes, "approval", "yes"), 2, "The value 'yes' is no JSON")
    refuses(office, (yes, " ", "true"), 2, "Name the signal")
    refuses(office, (over, "approval", "true"), 1, f"Job {over} is over: done at act.")
    refuses(office, (yes, "approval", "true", "--flow", "other"), 1, "is one of flow mail")
    said = office.signal(yes, "payment", "3")
    assert "At act the job waits for signal approval until 2" in said.stderr
    assert "The signal is kept until it waits for payment." in said.stderr

    prefix = yes.rstrip("0")
    done = office.signal(prefix, "approval", '{"approved": true}', "--by", "ann", "-o", "json")
    assert "It is what the job waits for at act." in done.stderr
    sent = json.loads(done.stdout)
    assert (sent["job"], sent["flow"], sent["by"]) == (yes, "mail", "ann")
    assert sent["waits"][0].startswith("signal approval until 2")
    # By its id it counts once.
    again = office.signal(yes, "approval", "false", "--by", "bob", "--id", sent["id"])
    assert again.returncode == 0
    refusal = '{"approved": false, "reason": "call them"}'
    assert office.signal(no, "approval", refusal, "--by", "bob").returncode == 0
    assert office.signal(typo, "approval", '"yes"').returncode == 0

    second = rig.worker(app=APP)
    office.wait_standing(done=len(others) + 3, waiting=2)
    rig.wait(lambda: office.waiting([typo, never]), "both wait, the one for another word")
    assert office.signal(typo, "approval", "true", "--by", "ann").returncode == 0
    office.wait_standing(done=len(others) + 4, waiting=1)

    for job, by in ((early, "eve"), (yes, "ann"), (typo, "ann")):
        found = office.result(job)
        assert (found.action, found.reason) == (
            Action.REPLY,
            f"of high priority; approved by {by}",
        )
        assert office.filed(job) == ["reply"]
    found = office.result(no)
    assert found.reason == "of high priority; refused by bob: call them"
    assert (found.action, office.filed(no)) == (Action.TICKET, ["ticket"])
    assert office.filed(never) == []
    assert office.steps(yes)[2:] == [
        ("act", Status.WAITING),
        ("join", Status.WAITING),
        ("join", Status.RUNNING),
        ("act", Status.DONE),
    ]
    assert office.stats()["effects"] == effects_of(others) + 4
    assert office.stats()["doubles"] == 0
    assert_no_step_twice(rig)
    assert second.stop() == 0


def refuses(office: Office, args: tuple[str, ...], code: int, why: str) -> None:
    done = office.signal(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr


def effects_of(rows: list[Row]) -> int:
    return sum(plan_action(enriched(row)).action is not Action.ARCHIVED for row in rows)
