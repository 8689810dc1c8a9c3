"""Goal: a replay says what today's code would fork and join otherwise, child by child, and touches
nothing.

Method: one run of real workers on `split` → `part`s → `gather` → more `part`s → `total` → `report`;
then replays with the code as it is and with one line of it changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict

from streams.config import Settings
from tests.conftest import database, delete_topics
from tests.support import forking, two_forks
from tests.support.audits import project
from tests.support.commands import Command, Completed
from tests.support.forking import Sum, Whole
from tests.support.letters import ran
from tests.support.rig import Rig
from tests.support.standing import standing
from tests.support.two_forks import Order, flow

pytestmark = pytest.mark.services

APP = "tests.support.two_forks:flow"
#: Of both forks of a job of three parts: three, and one more.
CHILDREN = 7


class Town:
    """A run that is over: `jobs` of three parts each, and `torn`, whose part 1 failed."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        worker = rig.worker(app=APP)
        self.jobs = rig.submit([Order(n=n, parts=3) for n in range(3)])
        torn = Order(n=9, parts=3, bad=(1,), on_missing="fail")
        (self.torn,) = rig.submit([torn])
        rig.wait(lambda: rig.finished() == 3 and rig.dead_letters("join"), "all jobs are over")
        rig.wait_drained(*flow.inputs)
        project(rig)
        assert worker.stop() == 0


@pytest.fixture(scope="module")
def town(template: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """One run for all tests here: none of them may change it, which each of them checks."""
    name = f"t{uuid4().hex[:8]}"
    original = str(conninfo_to_dict(template.database_url)["dbname"])
    with database(template, f"handoff_{name}", copy_of=original) as fresh:
        settings = fresh.model_copy(update={"prefix": f"{name}-"})
        with Rig(settings, tmp_path_factory.mktemp("town"), flow) as rig:
            yield Town(rig)
        delete_topics(settings.kafka_bootstrap_servers, settings.prefix)


@pytest.fixture
def handoff(town: Town, tmp_path: Path) -> Iterator[Command]:
    """Whatever a test does with it, nothing has moved and the target was not called."""
    before, calls = standing(town.rig), len(town.rig.target.calls)
    yield Command(town.rig.settings, tmp_path)
    assert standing(town.rig) == before
    assert len(town.rig.target.calls) == calls


def changed(folder: Path, old: str, new: str) -> str:
    """`--app` of the flow with one line changed."""
    source = Path(two_forks.__file__).read_text()
    assert source.count(old) == 1, old
    name = f"twice_{uuid4().hex[:8]}"
    (folder / f"{name}.py").write_text(source.replace(old, new))
    return f"{name}:flow"


def replay(handoff: Command, *args: str, app: str = APP) -> dict[str, Any]:
    done: Completed = handoff("replay", *args, "--app", app, "-o", "json")
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["all_same"] else 1), done.stderr
    return found


def test_a_job_is_the_same_all_the_way_through_its_forks_and_joins(
    town: Town, handoff: Command
) -> None:
    found = replay(handoff, "--trace", town.jobs[0])
    assert found["all_same"], found
    # split, gather, total, report, and a step of each child; two of the join agent.
    assert (found["counts"]["same"], found["counts"]["skipped"]) == (4 + CHILDREN, 2)
    assert [g["kind"] for g in found["groups"]] == [
        "it is for the join agent, which runs no handler"
    ]
    alone = replay(handoff, "--trace", town.jobs[0], "--no-children")
    assert alone["counts"]["same"] == 4
    child = replay(handoff, "--trace", f"{town.jobs[0]}/5")
    assert (child["all_same"], child["records"]) == (True, 1)
    torn = replay(handoff, "--trace", town.torn)
    assert torn["all_same"], torn["groups"]


@pytest.mark.parametrize("stage", ["split", "part", "gather", "total"])
def test_every_stage_of_it_is_the_same(town: Town, handoff: Command, stage: str) -> None:
    found = replay(handoff, "--topic", f"twice.{stage}")
    assert found["all_same"], found
    several = replay(handoff, "--topic", f"twice.{stage}", "--jobs", "2")
    assert several["counts"] == found["counts"]


def test_the_child_is_named_that_is_handed_another_thing(
    town: Town, handoff: Command, tmp_path: Path
) -> None:
    app = changed(
        tmp_path,
        'Item(n=n, label="first", bad',
        'Item(n=n, label="first" if n != 2 else "last", bad',
    )
    found = replay(handoff, "--trace", town.jobs[1], app=app)
    (each,) = found["differing"]
    assert (each["stage"], each["verdict"], each["kind"]) == (
        "split",
        "changed",
        "fork.children[*].data.label",
    )
    assert each["differences"] == [
        {"path": "fork.children[2].data.label", "was": "first", "now": "last"}
    ]
    assert each["message"] == "1 of 3 children are handed another thing."
    ignored = replay(
        handoff, "--trace", town.jobs[1], "--ignore", "fork.children[*].data.label", app=app
    )
    assert ignored["all_same"]
    topic = replay(handoff, "--topic", "twice.split", "--jobs", "2", app=app)
    assert {d["job"] for d in topic["differing"]} == {*town.jobs, town.torn}
    assert len(topic["groups"]) == 1


def test_more_children_and_another_join_are_told(
    town: Town, handoff: Command, tmp_path: Path
) -> None:
    more = changed(tmp_path, "range(order.parts)", "range(order.parts + 1)")
    (each,) = replay(handoff, "--trace", town.jobs[0], app=more)["differing"]
    assert (each["kind"], each["message"]) == ("fork.expected", "")
    assert each["differences"] == [{"path": "fork.expected", "was": 3, "now": 4}]
    other = changed(
        tmp_path,
        'joins="gather")\ndef split',
        'joins=("gather", "total"))\ndef split',
    )
    module = tmp_path / f"{other.partition(':')[0]}.py"
    module.write_text(
        module.read_text().replace('Fork(items, join="gather"', 'Fork(items, join="total"')
    )
    (each,) = replay(handoff, "--trace", town.jobs[0], app=other)["differing"]
    assert each["kind"] == "fork.join: gather → total"


def test_a_stage_that_forks_no_more_goes_elsewhere(
    town: Town, handoff: Command, tmp_path: Path
) -> None:
    app = changed(
        tmp_path,
        'return Fork(items, join="gather", on_missing=order.on_missing)',
        'return Emit("part", items[0]) if items else Fork(items, join="gather")',
    )
    module = tmp_path / f"{app.partition(':')[0]}.py"
    module.write_text(
        module.read_text().replace(
            '_: Context) -> Fork:\n    """Forks.', '_: Context) -> Fork | Emit:\n    """Forks.'
        )
    )
    (each,) = replay(handoff, "--trace", town.jobs[0], app=app)["differing"]
    assert each["kind"] == "status: waiting → running, to: join → part"


def test_a_join_that_makes_something_else_of_the_same_results(
    town: Town, handoff: Command, tmp_path: Path
) -> None:
    app = changed(tmp_path, "items=tuple([priced async", "items=tuple(reversed([priced async")
    module = tmp_path / f"{app.partition(':')[0]}.py"
    module.write_text(
        module.read_text().replace("for priced in results])))", "for priced in results]))))")
    )
    found = replay(handoff, "--topic", "twice.total", app=app)
    assert {d["job"] for d in found["differing"]} == set(town.jobs)
    assert {d["kind"] for d in found["differing"]} == {"data.items[*].n"}
    # A second fork's children are compared by their own numbers.
    second = changed(
        tmp_path, 'Item(n=priced.n, label="second")', 'Item(n=priced.n + 1, label="second")'
    )
    (each,) = replay(handoff, "--trace", town.jobs[2], app=second)["differing"]
    assert [d["path"] for d in each["differences"]] == [
        f"fork.children[{n}].data.n" for n in range(3)
    ]


def test_a_file_has_what_a_fork_and_a_join_need(
    town: Town, handoff: Command, tmp_path: Path
) -> None:
    job = town.jobs[0]
    ran(handoff("export", job, "--to", str(tmp_path / "job.json"), "--app", APP))
    nowhere = {"DATABASE_URL": "postgresql://127.0.0.1:1/no", "KAFKA_BOOTSTRAP_SERVERS": "no:1"}
    done = handoff(
        "replay", "--from-file", str(tmp_path / "job.json"), "--app", APP, "-o", "json", **nowhere
    )
    assert json.loads(ran(done).stdout)["counts"]["same"] == 4
    app = changed(tmp_path, 'label="first"', 'label="1st"')
    (each,) = replay(handoff, "--from-file", str(tmp_path / "job.json"), app=app)["differing"]
    assert each["kind"] == "fork.digest"
    hidden = ("--redact", "data.label", "--redact", "data.items[*].label")
    redacted = ran(handoff("export", job, "--app", APP, *hidden)).stdout
    assert json.loads(redacted)["steps"][-2]["branches"]
    child = ran(handoff("export", f"{job}/1", "--to", str(tmp_path / "child.json"), "--app", APP))
    assert "Written" in child.stderr
    assert replay(handoff, "--from-file", str(tmp_path / "child.json"))["all_same"]


def test_two_jobs_and_two_children_are_compared(town: Town, handoff: Command) -> None:
    a, b = town.jobs[:2]
    ran(handoff("diff", a, b))
    ran(handoff("diff", f"{a}/1", f"{b}/1"))
    differ = handoff("diff", f"{a}/1", f"{a}/2", "-o", "json")
    (hop,) = json.loads(ran(differ, 1).stdout)["hops"]
    assert hop["differences"] == [{"path": "data.n", "was": 1, "now": 2}]


def test_the_topic_of_the_join_agent_is_refused_and_its_letter_skipped(
    town: Town, handoff: Command
) -> None:
    refused = ran(handoff("replay", "--topic", "twice.join", "--app", APP), 2)
    assert "join agent, which runs no handler" in refused.stderr
    letters = replay(handoff, "--dlq", "all")
    assert (letters["counts"]["same"], letters["counts"]["skipped"]) == (1, 1)


def test_what_is_not_kept_is_told_and_never_called_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, flow) as rig:
        town = Town(rig)
        handoff = Command(rig.settings, tmp_path)
        job = town.jobs[0]
        # The hash was in the state; without it the children's own records tell the same.
        rig.sql("UPDATE job_history SET topic_id = gen_random_uuid()")
        assert replay(handoff, "--trace", job, "--no-children")["counts"]["same"] == 4
        app = changed(tmp_path, 'n=n, label="first"', 'n=n + 1, label="first"')
        (each,) = replay(handoff, "--trace", job, app=app)["differing"]
        assert each["kind"] == "fork.children[*].data.n"
        exported = ran(handoff("export", job, "--app", APP)).stdout
        assert json.loads(exported)["steps"][0]["fork"]["digest"]
        # Of a join whose results are gone nothing is known, of one that has lost its row neither.
        rig.sql("DELETE FROM join_arrivals WHERE branch = 2")
        rig.sql("DELETE FROM joins WHERE seq = 1")
        found = replay(handoff, "--trace", job, "--no-children")
        assert {(g["stage"], g["verdict"], g["kind"]) for g in found["groups"]} == {
            ("split", "unknown", "what it forked is not kept any more"),
            ("gather", "unknown", f"results of join {job}:1 are not kept any more"),
            ("join", "skipped", "it is for the join agent, which runs no handler"),
        }


@pytest.fixture
def forks(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, forking.flow) as rig:
        yield rig


FORKING = "tests.support.forking:flow"


def test_forks_within_forks_are_followed_all_the_way_down(forks: Rig, tmp_path: Path) -> None:
    worker = forks.worker(app=FORKING)
    (job,) = forks.submit([Whole(n=0, parts=2, depth=2, effect=True)])
    forks.wait_results(1)
    forks.wait_drained(*forking.flow.inputs)
    project(forks)
    # One that lives says so in a table.
    assert worker.stop() == 0
    before = standing(forks)
    found = replay(Command(forks.settings, tmp_path), "--trace", job, app=FORKING)
    assert found["all_same"], found["groups"]
    # split and gather; 2 parts, each with 2 below it, each with 2 below it; 6 of them join theirs.
    assert found["counts"]["same"] == 2 + (2 + 4 + 8) + 6
    assert found["counts"]["skipped"] == 1 + 6
    below = replay(Command(forks.settings, tmp_path), "--trace", f"{job}/1", app=FORKING)
    assert below["counts"]["same"] == 1 + 2 + 4 + 3
    assert standing(forks) == before


def test_a_branch_that_came_too_late_is_missing_in_a_replay_and_a_rerun_too(
    forks: Rig, tmp_path: Path
) -> None:
    handoff = Command(forks.settings, tmp_path)
    worker = forks.worker(app=FORKING)
    whole = Whole(n=0, parts=3, bad=(0,), lost=(1,), on_missing="errors", timeout_s=1)
    (job,) = forks.submit([whole])
    forks.wait_results(1)
    forks.target.open("lost")
    forks.wait_drained(*forking.flow.inputs)
    project(forks)
    late = forks.sql("SELECT branch, late FROM join_arrivals ORDER BY branch")
    assert [(row["branch"], row["late"]) for row in late] == [(0, False), (1, True), (2, False)]
    assert worker.stop() == 0
    before = standing(forks)
    found = replay(handoff, "--topic", "forking.gather", app=FORKING)
    assert found["all_same"], found["groups"]
    assert standing(forks) == before
    args = ("jobs", "rerun", job, "--from", "gather", "--effects", "same", "--app", FORKING)
    ran(handoff(*args))
    worker = forks.worker(app=FORKING)
    forks.wait_results(2)
    assert worker.stop() == 0
    first, second = (Sum.model_validate_json(r.value or b"") for r in forks.records("done"))
    assert first == second
    assert (first.failed, first.missing) == ((f"{job}/0",), (f"{job}/1",))
