"""`handoff dlq` on letters that lie in topics: what is listed, shown, refused and discarded."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from schemas.state import Status
from streams.config import Settings
from streams.kafka import NewTopic, admin_client, create_topic
from streams.postgres import open_pool
from streams.state.projector import Projection, moves_of
from tests.support.commands import Command
from tests.support.letters import NOW_MS, Letters, ran
from tests.unit.deadletter.fakes import told
from tests.unit.state.records import TOPIC, TOPIC_ID, job_id, record, state

pytestmark = pytest.mark.services

SOURCE = """
from pydantic import BaseModel
from streams import Context, Done, Flow, stage

class Note(BaseModel):
    number: int

@stage("read", emits="keep")
def read(note: Note, job: Context) -> Note:
    return note

@stage("keep")
def keep(note: Note, job: Context) -> Done:
    return Done()

flow = Flow("notes", (read, keep))
other = Flow("others", (keep,))
"""
APP = "declared_dlq:flow"
HOUR_MS = 3_600_000


@pytest.fixture
def handoff(settings: Settings, tmp_path: Path) -> Command:
    (tmp_path / "declared_dlq.py").write_text(SOURCE)
    command = Command(settings, tmp_path)
    ran(command("topics", "apply", "--app", APP, "--yes"))
    return command


@pytest.fixture
def letters(settings: Settings, handoff: Command) -> Letters:
    return Letters(settings)


def rows(handoff: Command, *args: str) -> Any:
    return json.loads(ran(handoff(*args, "-o", "json")).stdout)


def test_letters_are_listed_by_what_went_wrong(handoff: Command, letters: Letters) -> None:
    for n in range(5):
        letters.put("read", n, message=f"job {n} has no 'field {n}'")
    letters.put("read", 5, error="rejected", message="not wanted", ago_ms=3 * HOUR_MS)
    letters.put("keep", 6, message="job 6 has no 'field 6'")
    found = rows(handoff, "dlq", "ls")
    told_of = [(c["where"], c["letters"], c["kind"], c["error"]) for c in found]
    assert sorted(told_of) == [
        ("notes.keep", 1, "handler_failed", "job <n> has no '…'"),
        ("notes.read", 1, "rejected", "not wanted"),
        ("notes.read", 5, "handler_failed", "job <n> has no '…'"),
    ]
    assert found[0]["letters"] == 5
    assert NOW_MS - 60_000 < found[0]["first_ms"] <= found[0]["last_ms"]
    assert found[0]["example"] in {job_id(n) for n in range(5)}
    table = ran(handoff("dlq", "ls")).stdout
    for text in (found[0]["key"], "notes.read", "job <n> has no '…'"):
        assert text in table
    assert {c["where"] for c in rows(handoff, "dlq", "ls", "--stage", "keep")} == {"notes.keep"}
    assert rows(handoff, "dlq", "ls", "--flow", "mail") == []
    assert sum(c["letters"] for c in rows(handoff, "dlq", "ls", "--since", "1h")) == 6
    assert ran(handoff("dlq", "ls", "--since", "soon"), 2).stdout == ""


def test_nothing_to_list_is_said(handoff: Command, letters: Letters) -> None:
    assert "No dead letter is open." in ran(handoff("dlq", "ls")).stderr
    letters.put("read", 0)
    listed = ran(handoff("dlq", "ls", "--letters"))
    assert job_id(0) in listed.stdout
    assert "begins at" not in listed.stderr


def test_a_list_of_letters_has_an_end_that_is_said(handoff: Command, letters: Letters) -> None:
    for n in range(4):
        letters.put("read", n)
    some = handoff("dlq", "ls", "--letters", "--limit", "3", "-o", "json")
    assert len(json.loads(ran(some).stdout)) == 3
    assert "more than 3" in some.stderr
    assert len(rows(handoff, "dlq", "ls", "--letters")) == 4


def test_letters_of_other_systems_and_of_nobody_are_listed_and_not_redriven(
    settings: Settings, handoff: Command, letters: Letters
) -> None:
    letters.put(
        "read", 0, headers=[("__connect.errors.topic", b"x"), ("__connect.errors.offset", b"3")]
    )
    letters.put("read", 1, headers=[])
    listed = rows(handoff, "dlq", "ls", "--letters")
    assert [x["system"] for x in listed] == ["kafka-connect", "unknown"]
    assert [x["job"] for x in listed] == [None, None]
    good = letters.put("read", 2)
    places = [x["place"] for x in listed]
    partly = ran(handoff("dlq", "redrive", *places, good), 1)
    assert "by kafka-connect, not by a stage" in partly.stdout
    assert "by nobody known" in partly.stdout
    assert "Redriven: 1 of 3" in partly.stderr
    shown = ran(handoff("dlq", "show", places[1])).stdout
    assert "unknown" in shown
    assert "None" not in shown
    # A topic that is none of ours can be read, too.
    with admin_client(settings) as admin:
        create_topic(settings, admin, NewTopic(f"{settings.prefix}orders.DLT", 1, 1))
    elsewhere = handoff("dlq", "ls", "--topic", f"{settings.prefix}orders.DLT")
    assert "No dead letter is open." in ran(elsewhere).stderr
    assert "does not exist" in ran(handoff("dlq", "ls", "--topic", "nowhere"), 2).stderr


def test_a_letter_is_shown_whole_and_as_text(handoff: Command, letters: Letters) -> None:
    original = [("tenant", b"acme"), ("x-null", None), ("x-raw", b"\xff\x1b[31m")]
    facts = told(
        topic=letters.settings.names.stage_topic("notes", "read"), stage="read", job=job_id(0)
    )
    letters.put("read", 0, value=b"\xff[bold]\x1b[31m", headers=[*original, *facts])
    shown = ran(handoff("dlq", "show", job_id(0)[:31] + "1")).stdout
    for text in (
        r"\xff[bold]\x1b[31m",
        "tenant",
        "acme",
        "null",
        "handler_failed",
        "step 2",
        "5",
    ):
        assert text in shown
    assert "\x1b" not in shown
    document = rows(handoff, "dlq", "show", job_id(0))
    assert b64decode(document["value"]["base64"]) == b"\xff[bold]\x1b[31m"
    assert (document["value"]["text"], document["key"]["text"]) == (None, job_id(0))
    assert [x["name"] for x in document["headers"]] == ["tenant", "x-null", "x-raw"]
    assert document["headers"][1]["value"] is None
    assert [x["name"] for x in document["told"]] == [name for name, _ in facts]
    assert (document["job_state"], document["actions"]) == (None, [])


async def _project(settings: Settings) -> None:
    log = [record(state(job_id(0), 2, status=Status.FAILED, to=()))]
    async with open_pool(settings) as pool:
        projection = Projection(pool, settings, topic=TOPIC, topic_id=TOPIC_ID)
        await projection.apply(log, moves_of(log, {}))


async def test_show_tells_what_was_done_and_where_the_job_is_now(
    settings: Settings, handoff: Command, letters: Letters
) -> None:
    await _project(settings)
    letters.put("read", 0, seq="1")
    letters.put("read", 0, seq="2")
    ran(handoff("dlq", "redrive", job_id(0), "--as", "anna", "--reason", "desk is back"))
    shown = ran(handoff("dlq", "show", job_id(0)))
    for text in ("is now", "failed", "anna", "desk is back", "redrive"):
        assert text in shown.stdout
    assert f"Earlier letters of this job: {letters.topic('read')}/0/0" in shown.stderr
    document = rows(handoff, "dlq", "show", f"{letters.topic('read')}[0]@1")
    assert (document["step"], document["job_state"]["seq"]) == (2, 2)
    (action,) = document["actions"]
    assert (action["who"], action["sent_topic"]) == ("anna", f"{settings.prefix}notes.read")


def test_an_id_that_is_none_or_several_is_bad_news(handoff: Command, letters: Letters) -> None:
    for n in range(3):
        letters.put("read", n)
    for args, says in (
        (("ffff",), "No dead letter is of a job that begins with ffff"),
        (("00",), "Give more digits"),
        (("not hex",), "neither the beginning of a job id nor topic/partition/offset"),
        ((f"{letters.topic('read')}/0/99",), "There is no letter at"),
    ):
        for command in (("show",), ("redrive",), ("discard", "--reason", "x", "--yes")):
            failed = ran(handoff("dlq", *command, *args), 1)
            assert says in failed.stdout + failed.stderr, command
    partly = ran(handoff("dlq", "redrive", "ffff", job_id(1)), 1)
    assert "Redriven: 1 of 2" in partly.stderr


def test_the_id_of_a_job_means_that_job_and_not_its_children(
    handoff: Command, letters: Letters
) -> None:
    letters.put("read", 0, job=f"{job_id(0)}/2")
    letters.put("read", 0)
    letters.put("read", 0, job=f"{job_id(0)}/2/1")
    for job in (job_id(0), f"{job_id(0)}/2", f"{job_id(0)}/2/1"):
        assert rows(handoff, "dlq", "show", job)["job"] == job
    assert "Give more digits" in ran(handoff("dlq", "show", job_id(0)[:-1]), 1).stderr


def test_a_dry_run_shows_where_letters_would_go_and_sends_none(
    settings: Settings, handoff: Command, letters: Letters
) -> None:
    letters.put("read", 0)
    letters.put("read", 1, headers=[])
    everything = ("--filter", "flow=notes")
    shown = ran(handoff("dlq", "redrive", *everything, "--dry-run"), 1)
    assert f"{settings.prefix}notes.read" in shown.stdout
    assert "by nobody known" in shown.stdout
    assert "1 would be redriven" in shown.stderr
    assert len(rows(handoff, "dlq", "ls", "--letters")) == 2


def test_a_choice_of_many_is_asked_for_and_leaves_out_what_is_settled(
    handoff: Command, letters: Letters
) -> None:
    for n in range(3):
        letters.put("read", n, message=f"timed out after {n} s")
    letters.put("read", 3, error="rejected", message="no")
    letters.put("read", 4, message="timed out after 9 s", ago_ms=3 * HOUR_MS)
    key = next(c["key"] for c in rows(handoff, "dlq", "ls") if c["letters"] == 4)
    no = ran(handoff("dlq", "redrive", "--cluster", key, stdin="n\n"), 2)
    assert "Redrive 4?" in no.stderr
    for text, count in (
        ("before=1h", 1),
        ("since=1h", 4),
        ('error="TIMED OUT"', 4),
        ("stage=x", 0),
    ):
        dry = ran(handoff("dlq", "redrive", "--filter", text, "--dry-run"))
        assert f"{count} would be redriven" in dry.stderr or count == 0
    # One that does not belong lies between them.
    some = ran(handoff("dlq", "redrive", "--cluster", key, stdin="y\n"))
    assert "Redriven: 4 of 4" in some.stderr
    assert "No open letter fits" in ran(handoff("dlq", "redrive", "--cluster", key)).stderr
    (left,) = rows(handoff, "dlq", "ls")
    assert (left["kind"], left["letters"]) == ("rejected", 1)
    assert sum(c["letters"] for c in rows(handoff, "dlq", "ls", "--all")) == 5


def test_a_discard_needs_a_reason_and_the_number_typed(
    settings: Settings, handoff: Command, letters: Letters
) -> None:
    for n in range(3):
        letters.put("read", n)
    everything = ("--filter", "stage=read")
    assert "--reason" in ran(handoff("dlq", "discard", *everything), 2).stderr
    assert "is empty" in ran(handoff("dlq", "discard", *everything, "--reason", " "), 2).stderr
    wrong = ran(handoff("dlq", "discard", *everything, "--reason", "old", stdin="4\n"), 2)
    assert "nothing was discarded" in wrong.stderr
    assert len(rows(handoff, "dlq", "ls", "--letters")) == 3
    done = ran(handoff("dlq", "discard", *everything, "--reason", "old", stdin="3\n"))
    assert "Discarded: 3." in done.stderr
    assert rows(handoff, "dlq", "ls", "--letters") == []
    # Nothing is gone: it is listed with --all, and can still be redriven by its id.
    assert len(rows(handoff, "dlq", "ls", "--letters", "--all")) == 3
    ran(handoff("dlq", "redrive", job_id(0)))
    acted = rows(handoff, "dlq", "show", job_id(0))["actions"]
    assert [(a["action"], a["why"]) for a in acted] == [("discard", "old"), ("redrive", "")]
    assert acted[0]["new_sha256"] is None


def test_an_edit_is_checked_by_the_app_that_declares_the_stage(
    handoff: Command, letters: Letters
) -> None:
    letters.put("read", 0)
    fields = ("--set", "number=1", "--dry-run")
    other = handoff("dlq", "edit", job_id(0), "--app", "declared_dlq:other", *fields)
    assert "of flow notes, but --app names flow others" in ran(other, 2).stderr
    assert '+  "number": 1' in ran(handoff("dlq", "edit", job_id(0), "--app", APP, *fields)).stdout
    both = handoff("dlq", "edit", job_id(0), "--app", APP, "--file", __file__, *fields)
    assert "not both" in ran(both, 2).stderr
    letters.put("read", 1, headers=[])
    foreign = f"{letters.topic('read')}/0/1"
    refused = handoff("dlq", "edit", foreign, "--app", APP, *fields)
    assert "by nobody known" in ran(refused, 1).stderr


def test_a_stage_whose_topic_is_gone_is_a_reason_and_the_others_go_on(
    settings: Settings, handoff: Command, letters: Letters
) -> None:
    letters.put("read", 0)
    letters.put("keep", 1)
    with admin_client(settings) as admin:
        for future in admin.delete_topics([f"{settings.prefix}notes.keep"]).values():
            future.result()
    partly = ran(handoff("dlq", "redrive", job_id(0), job_id(1), "-o", "json"), 1)
    report = json.loads(partly.stdout)
    assert (report["redriven"], report["left"]) == (1, 0)
    (refused,) = report["refused"]
    assert refused["job"] == job_id(1)
    assert "does not exist" in refused["reason"]


def test_a_database_that_is_away_is_the_worlds_fault(handoff: Command, letters: Letters) -> None:
    letters.put("read", 0)
    url = "postgresql://postgres@127.0.0.1:9/none"
    # Letters lie in Kafka: all of them can be listed all the same.
    assert job_id(0) in ran(handoff("dlq", "ls", "--all", "--letters", DATABASE_URL=url)).stdout
    away = ran(handoff("dlq", "redrive", job_id(0), DATABASE_URL=url), 3)
    assert "does not serve" in away.stderr
    assert "Traceback" not in away.stderr


def test_letters_that_have_expired_are_said_to_be_gone(
    settings: Settings, handoff: Command, letters: Letters
) -> None:
    for n in range(3):
        letters.put("read", n)
    with admin_client(settings) as admin:
        cut = admin.delete_records([TopicPartition(letters.topic("read"), 0, 2)])
        for future in cut.values():
            future.result()
    listed = ran(handoff("dlq", "ls", "--letters"))
    assert job_id(2) in listed.stdout
    assert job_id(0) not in listed.stdout
    assert f"{letters.topic('read')} begins at [0]@2: earlier letters are gone." in listed.stderr
    gone = ran(handoff("dlq", "redrive", f"{letters.topic('read')}/0/0"), 1)
    assert "may have expired" in gone.stdout
