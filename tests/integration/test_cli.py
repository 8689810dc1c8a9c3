"""Commands that read, on a real projection and ledger; and what they say when nothing is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from schemas.state import Status
from streams.config import Settings
from streams.postgres import connect, drop_database, open_pool
from streams.state.projector import Projection, moves_of
from tests.support.commands import Command
from tests.unit.state.records import TOPIC, TOPIC_ID, job_id, record, state

pytestmark = pytest.mark.services

SOURCE = """
from pydantic import BaseModel
from streams import Context, Done, Flow, stage

class Note(BaseModel):
    number: int

@stage("read")
def read(note: Note, job: Context) -> Done:
    return Done()

flow = Flow("notes", (read,))
"""
APP = "declared_cli:flow"
DONE, FAILED = job_id(0), job_id(1)


@pytest.fixture
def handoff(settings: Settings, tmp_path: Path) -> Command:
    (tmp_path / "declared_cli.py").write_text(SOURCE)
    return Command(settings, tmp_path)


@pytest.fixture
async def jobs(settings: Settings) -> None:
    """One job of three steps that is done, one that failed at once."""
    error = {"kind": "rejected", "message": "no [bold]such[/bold] desk"}
    states = [state(DONE, n) for n in (1, 2, 3)]
    states.append(state(FAILED, 1, status=Status.FAILED, to=(), error=error, attempts=5))
    log = [record(s, n) for n, s in enumerate(states)]
    async with open_pool(settings) as pool:
        projection = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
        await projection.apply(log, moves_of(log, {}))


def add_effect(settings: Settings, status: str) -> None:
    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO effects (key, trace_id, flow, stage, name, fingerprint, status,"
            " idempotent, slot, incarnation, leased_until, settled_at)"
            " VALUES (%s, %s, 'mail', 'act', 'reply', 'f', %s, false, 0, 'i', %s, %s)",
            (
                f"{DONE}:act:0:reply",
                DONE,
                status,
                datetime(2026, 1, 1, tzinfo=UTC),
                datetime.now(UTC) if status == "done" else None,
            ),
        )


@pytest.mark.usefixtures("jobs")
def test_jobs_are_listed_as_a_table_and_as_json(handoff: Command) -> None:
    table = handoff("jobs", "ls")
    assert table.returncode == 0, table.stderr
    assert DONE in table.stdout
    assert "rejected" in table.stdout
    assert "\x1b[" not in table.stdout
    document = json.loads(handoff("jobs", "ls", "-o", "json").stdout)
    assert {job["trace_id"] for job in document} == {DONE, FAILED}


@pytest.mark.usefixtures("jobs")
def test_filters_and_limits_of_the_list(handoff: Command) -> None:
    failed = json.loads(handoff("jobs", "ls", "--status", "failed", "-o", "json").stdout)
    assert [job["trace_id"] for job in failed] == [FAILED]
    one = handoff("jobs", "ls", "--limit", "1", "-o", "json")
    assert len(json.loads(one.stdout)) == 1
    assert "more than 1" in handoff("jobs", "ls", "--limit", "1").stderr
    assert json.loads(handoff("jobs", "ls", "--since", "1s", "-o", "json").stdout) == []
    assert handoff("jobs", "ls", "--since", "soon").returncode == 2


@pytest.mark.usefixtures("jobs")
def test_a_job_is_shown_by_the_beginning_of_its_id(settings: Settings, handoff: Command) -> None:
    add_effect(settings, "done")
    shown = handoff("jobs", "show", DONE)
    assert shown.returncode == 0, shown.stderr
    for text in ("classify", "enrich", "act", "reply", "mail.x[0]@1"):
        assert text in shown.stdout
    document = json.loads(handoff("jobs", "show", DONE, "-o", "json").stdout)
    assert [step["seq"] for step in document["steps"]] == [1, 2, 3]
    assert [effect["name"] for effect in document["effects"]] == ["reply"]


@pytest.mark.usefixtures("jobs")
def test_a_job_that_nobody_knows_or_two_share_is_bad_news(handoff: Command) -> None:
    for command in (("jobs", "show"), ("trace",)):
        unknown = handoff(*command, "ffff")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "No job has an id that begins with ffff" in unknown.stderr
        shared = handoff(*command, "00")
        assert shared.returncode == 1
        assert "Give more digits" in shared.stderr
        assert handoff(*command, "not hex").returncode == 1


@pytest.mark.usefixtures("jobs")
def test_a_trace_is_drawn_and_is_json(settings: Settings, handoff: Command) -> None:
    add_effect(settings, "done")
    drawn = handoff("trace", DONE)
    assert drawn.returncode == 0, drawn.stderr
    for text in ("classify", "→ enrich", "done", "█", "↳ reply", "working"):
        assert text in drawn.stdout
    document = json.loads(handoff("trace", DONE, "-o", "json").stdout)
    assert [hop["hop"]["stage"] for hop in document["hops"]] == ["classify", "enrich", "act"]


@pytest.mark.usefixtures("jobs")
def test_the_error_of_a_failed_job_is_text_and_not_markup(handoff: Command) -> None:
    drawn = handoff("trace", FAILED)
    assert "no [bold]such[/bold] desk" in drawn.stdout
    assert "5 attempts" in drawn.stdout


def test_effects_in_doubt_are_bad_news(settings: Settings, handoff: Command) -> None:
    assert handoff("effects", "ls", "--in-doubt").returncode == 0
    add_effect(settings, "in_doubt")
    listed = handoff("effects", "ls", "--in-doubt")
    assert listed.returncode == 1
    assert f"{DONE}:act:0:reply" in listed.stdout
    document = json.loads(handoff("effects", "ls", "-o", "json").stdout)
    assert [effect["status"] for effect in document] == ["in_doubt"]


def test_topics_are_planned_applied_and_then_as_declared(handoff: Command) -> None:
    plan = handoff("topics", "plan", "--app", APP)
    assert plan.returncode == 1
    assert "notes.read.dlq" in plan.stdout
    refused = handoff("topics", "apply", "--app", APP, stdin="n\n")
    assert refused.returncode == 2
    assert handoff("topics", "apply", "--app", APP, "--yes").returncode == 0
    again = handoff("topics", "plan", "--app", APP, "-o", "json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["create"] == []


def test_the_doctor_says_what_is_wrong_and_what_mends_it(handoff: Command) -> None:
    before = handoff("doctor", "--app", APP)
    assert before.returncode == 1
    assert "handoff topics apply" in before.stdout
    assert handoff("topics", "apply", "--app", APP, "--yes").returncode == 0
    after = handoff("doctor", "--app", APP, "-o", "json")
    checks = {check["name"]: check for check in json.loads(after.stdout)}
    assert after.returncode == 0, after.stdout
    assert checks["topics"]["ok"]
    assert checks["group offsets"]["detail"] == "seeded"
    assert checks["projection"]["detail"] == "0 records behind"


def test_the_doctor_sees_effects_in_doubt_and_a_collector_that_is_away(
    settings: Settings, handoff: Command
) -> None:
    handoff("topics", "apply", "--app", APP, "--yes")
    add_effect(settings, "in_doubt")
    found = handoff(
        "doctor", "--app", APP, "-o", "json", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9"
    )
    bad = [check["name"] for check in json.loads(found.stdout) if not check["ok"]]
    assert bad == ["effects", "collector"]


def test_the_database_is_made_and_migrated_by_command(settings: Settings, handoff: Command) -> None:
    drop_database(settings)
    # Without a schema, and without a database, commands say what to run.
    assert handoff("jobs", "ls").returncode == 3
    done = handoff("db", "migrate")
    assert done.returncode == 0, done.stderr
    assert "0001_initial" in done.stdout.split()
    assert handoff("db", "migrate").stdout == ""
    assert handoff("db", "migrate", "--plan").returncode == 0
    with connect(settings) as conn:
        conn.execute("DROP TABLE jobs CASCADE")
    lost = handoff("jobs", "ls")
    assert lost.returncode == 2
    assert "handoff db migrate" in lost.stderr
    assert "Traceback" not in lost.stderr


def test_services_that_are_away_are_the_worlds_fault(handoff: Command) -> None:
    away = handoff("jobs", "ls", DATABASE_URL="postgresql://postgres@127.0.0.1:9/none")
    assert (away.returncode, away.stdout) == (3, "")
    assert "does not serve" in away.stderr
    assert "Traceback" not in away.stderr
