"""Replay of real records through real code: what it says, and that it touches nothing."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from psycopg.conninfo import conninfo_to_dict

from agents.spam_model import shipped
from streams.config import Settings
from tests.conftest import database, delete_topics
from tests.support.commands import Command, Completed
from tests.support.mail_town import BROKEN, MAILS, MailTown

pytestmark = pytest.mark.services

#: The package names its stages as their modules.
CLASSIFY = import_module("agents.classify")
ACT = import_module("agents.act")


@pytest.fixture(scope="module")
def town(template: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailTown]:
    """One run for all tests here: none of them may change it, which each of them checks."""
    name = f"t{uuid4().hex[:8]}"
    original = str(conninfo_to_dict(template.database_url)["dbname"])
    with database(template, f"handoff_{name}", copy_of=original) as fresh:
        settings = fresh.model_copy(update={"prefix": f"{name}-"})
        with MailTown(settings, tmp_path_factory.mktemp("town")) as town:
            yield town
        delete_topics(settings.kafka_bootstrap_servers, settings.prefix)


@pytest.fixture
def handoff(town: MailTown, tmp_path: Path) -> Iterator[Command]:
    """Whatever a test does with it, nothing has moved and the desk was not called."""
    before = town.standing()
    yield Command(town.settings, tmp_path)
    assert town.standing() == before


def changed(folder: Path, name: str, module: Any, stage: str, old: str, new: str) -> str:
    """`--app` of a flow with one line of one stage changed."""
    source = Path(module.__file__).read_text()
    assert source.count(old) >= 1, f"{old!r} is in {module.__name__}"
    others = {"classify", "enrich", "act"} - {stage}
    flow = f"\nfrom agents import {', '.join(sorted(others))}\nfrom streams import Flow\n"
    flow += 'flow = Flow("mail", (classify, enrich, act))\n'
    (folder / f"{name}.py").write_text(source.replace(old, new) + flow)
    return f"{name}:flow"


def report(done: Completed) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["all_same"] else 1), done.stderr
    return found


def test_unchanged_code_does_the_same_at_every_stage(town: MailTown, handoff: Command) -> None:
    for stage in ("classify", "enrich", "act"):
        found = report(handoff("replay", "--topic", f"mail.{stage}", "-o", "json"))
        assert found["all_same"], found["groups"]
        broken = 1 if stage == "classify" else 0
        assert found["counts"]["same"] == MAILS + broken
        # The second submission, and the tombstone.
        assert found["counts"]["skipped"] == 2 * broken
        assert found["differing"] == []


def test_exactly_the_mails_are_named_whose_label_a_changed_line_turns(
    town: MailTown, handoff: Command, tmp_path: Path
) -> None:
    old = CLASSIFY.SPAM_FROM
    scores = {i: shipped().score(r["subject"], r["body"]) for i, r in town.rows.items()}
    new = median(score for score in scores.values() if score >= old)
    turned = {i for i, score in scores.items() if old <= score < new}
    assert 0 < len(turned) < MAILS
    app = changed(
        tmp_path,
        "stricter",
        CLASSIFY,
        "classify",
        f"SPAM_FROM = {old}",
        f"SPAM_FROM = {new}",
    )
    command = ("replay", "--topic", "mail.classify", "--app", app, "-o", "json")
    found = report(handoff(*command))
    assert {each["job"] for each in found["differing"]} == turned
    (group,) = [g for g in found["groups"] if g["verdict"] != "skipped"]
    assert (group["verdict"], group["kind"]) == ("changed", "data.label")
    for each in found["differing"]:
        assert each["differences"] == [{"path": "data.label", "was": "spam", "now": "ham"}]
    assert report(handoff(*command, "--ignore", "data.label"))["all_same"]
    both = report(handoff(*command, "--jobs", "2"))
    assert (both["counts"], both["groups"]) == (found["counts"], found["groups"])


def test_an_effect_that_never_was_is_named_and_not_called(
    town: MailTown, handoff: Command, tmp_path: Path
) -> None:
    wanted = {r["trace_id"] for r in town.rig.sql("SELECT trace_id FROM effects")}
    tickets = {
        r["trace_id"] for r in town.rig.sql("SELECT trace_id FROM effects WHERE name = 'ticket'")
    }
    assert 0 < len(tickets) < len(wanted) < MAILS
    other = changed(
        tmp_path, "renamed", ACT, "act", '"ticket", file_ticket,', '"case", file_ticket,'
    )
    topic = ("replay", "--topic", "mail.act", "-o", "json")
    found = report(handoff(*topic, "--app", other))
    assert found["counts"]["new effect"] == len(tickets)
    assert found["counts"]["same"] == MAILS - len(tickets)
    assert {each["job"] for each in found["differing"]} == tickets

    blocked = report(handoff(*topic, "--effects", "block"))
    assert {each["job"] for each in blocked["differing"]} == wanted
    assert blocked["counts"]["new effect"] == len(wanted)

    reworded = changed(
        tmp_path, "reworded", ACT, "act", '"reason": plan.reason,', '"reason": "because",'
    )
    found = report(handoff(*topic, "--app", reworded))
    assert {each["job"] for each in found["differing"]} == wanted
    kinds = {g["kind"] for g in found["groups"]}
    assert kinds == {"effect ticket: other arguments", "effect reply: other arguments"}

    silent = changed(
        tmp_path, "silent", ACT, "act", "if plan.action is Action.TICKET:", "if mail is None:"
    )
    found = report(handoff(*topic, "--app", silent))
    assert {each["job"] for each in found["differing"]} == tickets
    assert all(
        {"path": "effects.ticket", "was": "done", "now": "not asked for"} in each["differences"]
        for each in found["differing"]
    )


def test_traces_filters_ranges_and_dead_letters_select_what_they_say(
    town: MailTown, handoff: Command
) -> None:
    job = next(iter(town.rows))
    found = report(handoff("replay", "--trace", job, "-o", "json"))
    assert (found["all_same"], found["records"]) == (True, 3)

    found = report(handoff("replay", "--filter", "stage=act status=done", "-o", "json"))
    assert (found["all_same"], found["records"]) == (True, 3 * MAILS)

    found = report(handoff("replay", "--dlq", "all", "-o", "json"))
    assert (found["all_same"], found["records"]) == (True, 1)
    assert report(handoff("replay", "--trace", BROKEN, "-o", "json"))["all_same"]

    offsets = [r.offset for r in town.rig.records("enrich") if r.partition == 1]
    some = (offsets[3], offsets[10])
    span = ("--partition", "1", "--from", str(some[0]), "--to", str(some[1]))
    found = report(handoff("replay", "--topic", "mail.enrich", *span, "-o", "json"))
    assert found["records"] == sum(some[0] <= x < some[1] for x in offsets)

    timed = report(handoff("replay", "--topic", "mail.enrich", "--from", "2h", "-o", "json"))
    assert (timed["all_same"], timed["records"]) == (True, MAILS)
    none = handoff("replay", "--topic", "mail.enrich", "--to", "2020-01-01")
    assert none.returncode == 1
    assert "No record fits" in none.stdout
    assert handoff("replay", "--trace", "ffff").returncode == 1


def test_a_failing_stage_and_a_mended_one_are_told_apart(
    town: MailTown, handoff: Command, tmp_path: Path
) -> None:
    failing = changed(
        tmp_path,
        "failing",
        CLASSIFY,
        "classify",
        "    score = spam_model",
        '    assert "unsubscribe" not in mail.body\n    score = spam_model',
    )
    sad = {i for i, r in town.rows.items() if "unsubscribe" in r["body"]}
    assert 0 < len(sad) < MAILS
    found = report(handoff("replay", "--topic", "mail.classify", "--app", failing, "-o", "json"))
    assert {each["job"] for each in found["differing"]} == sad
    assert found["counts"]["failed"] == len(sad)
    table = handoff("replay", "--topic", "mail.classify", "--app", failing)
    assert "status: running → failed" in table.stdout


def test_a_job_is_exported_and_replayed_with_no_services(
    town: MailTown, handoff: Command, tmp_path: Path
) -> None:
    row = town.rig.sql("SELECT trace_id FROM effects WHERE name = 'ticket' ORDER BY 1")[0]
    job, file = row["trace_id"], tmp_path / "job.json"
    assert handoff("export", job, "--to", str(file)).returncode == 0
    nowhere = {
        "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "DATABASE_URL": "postgresql://127.0.0.1:1/none",
        "HANDOFF_PREFIX": "elsewhere-",
    }
    again = ("replay", "--from-file", str(file), "-o", "json")
    found = report(handoff(*again, **nowhere))
    assert (found["all_same"], found["records"]) == (True, 3)
    assert found["arguments_compared"]

    other = changed(
        tmp_path, "renamed2", ACT, "act", '"ticket", file_ticket,', '"case", file_ticket,'
    )
    here = report(handoff("replay", "--trace", job, "--app", other, "-o", "json"))
    there = report(handoff(*again, "--app", other, **nowhere))
    assert here["groups"] == there["groups"]
    assert there["counts"]["new effect"] == 1

    hidden = tmp_path / "hidden.json"
    ran = handoff(
        "export",
        job,
        "--to",
        str(hidden),
        "--redact",
        "data.thread_subject",
        "--redact",
        "data.body",
    )
    assert ran.returncode == 0
    (step,) = [s for s in json.loads(hidden.read_text())["steps"] if s["stage"] == "enrich"]
    assert json.loads(step["step"]["data"])["thread_subject"] == "[redacted]"
    assert json.loads(step["step"]["data"])["body"] == "[redacted]"
    assert json.loads(b64decode(step["record"]["value"]))["subject"] == town.rows[job]["subject"]
    assert {
        e["fingerprint"] for s in json.loads(hidden.read_text())["steps"] for e in s["effects"]
    } == {None}
    found = report(handoff("replay", "--from-file", str(hidden), "-o", "json", **nowhere))
    assert not found["arguments_compared"]


def test_two_jobs_are_compared_hop_by_hop(town: MailTown, handoff: Command) -> None:
    a, b, *_ = town.rows
    assert handoff("diff", a, a).returncode == 0
    done = handoff("diff", a, b, "-o", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [hop["a"]["stage"] for hop in found["hops"]] == ["classify", "enrich", "act"]
    first = {d["path"]: (d["was"], d["now"]) for d in found["hops"][0]["differences"]}
    assert first["data.subject"] == (town.rows[a]["subject"], town.rows[b]["subject"])
    assert "data.subject" in handoff("diff", a, b).stdout
    assert handoff("diff", a, BROKEN).returncode == 1


def test_what_has_expired_is_said_and_never_called_same(town: MailTown, tmp_path: Path) -> None:
    """The last test here: it takes records away."""
    handoff = Command(town.settings, tmp_path)
    records = [r for r in town.rig.records("enrich") if r.partition == 0]
    gone, cut = records[:5], records[5].offset
    topic = town.rig.topic("enrich")
    town.rig.admin.delete_records([TopicPartition(topic, 0, cut)])[
        TopicPartition(topic, 0, cut)
    ].result(30)
    found = report(handoff("replay", "--trace", gone[0].job, "-o", "json"))
    assert (found["counts"]["unknown"], found["counts"]["same"]) == (1, 2)
    (named,) = found["differing"]
    assert (named["stage"], named["seq"], named["kind"]) == ("enrich", 2, "its record has expired")

    span = ("replay", "--topic", "mail.enrich", "--partition", "0", "-o", "json")
    found = report(handoff(*span, "--from", "0"))
    assert found["counts"]["same"] == len(records) - len(gone)
    assert found["beyond_the_horizon"] == [f"Offsets 0 to {cut - 1} of {topic}[0] have expired."]
    assert not found["all_same"]

    lost = handoff("export", gone[0].job, "--to", str(tmp_path / "part.json"))
    assert lost.returncode == 1
    assert "its record has expired" in lost.stderr
