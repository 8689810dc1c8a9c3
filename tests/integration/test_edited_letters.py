"""Letters that are edited: refused or sent as the stage's model says, each kind of bad record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas import headers as h
from streams.config import Settings
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice, assert_projection_is_the_fold
from tests.support.letters import (
    MENDED,
    STAGES,
    actions,
    assert_each_has_one_result,
    letters_of,
    ran,
    redriven_records,
)
from tests.support.rig import Rig, job_id
from tests.support.topics import Record

pytestmark = pytest.mark.services


def test_an_edit_that_the_stage_would_refuse_is_refused_and_a_good_one_goes_on(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        handoff = Command(settings, tmp_path)
        ids = letters_of(rig, 1)
        app = ("--app", "tests.support.flows:flow")
        bad = ran(handoff("dlq", "edit", ids[0], *app, "--yes", "--set", "n=many"), 1)
        assert "no Job: n: Input should be a valid integer" in bad.stderr
        (tmp_path / "new.json").write_text('{"wait_ms": "x"}')
        whole = handoff("dlq", "edit", ids[0], *app, "--file", str(tmp_path / "new.json"), "--yes")
        assert "n: Field required; wait_ms: Input should be a valid number" in ran(whole, 1).stderr
        shown = handoff("dlq", "edit", ids[0], *app, "--set", "fault=", "--dry-run")
        assert '-  "fault": "reject"' in ran(shown).stdout
        no = handoff("dlq", "edit", ids[0], *app, "--set", "fault=", stdin="n\n")
        ran(no, 2)
        assert redriven_records(rig) == []
        ran(handoff("dlq", "edit", ids[0], *app, "--set", "fault=", "--yes", "--as", "anna"))
        rig.worker(*STAGES)
        assert_each_has_one_result(rig, ids)
        (row,) = actions(rig, "edit")
        assert (row["who"], row["seq"]) == ("anna", 2)
        assert row["old_sha256"] != row["new_sha256"]


def test_an_editor_changes_the_payload_or_leaves_it_alone(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        handoff = Command(settings, tmp_path)
        ids = letters_of(rig, 1)
        edit = ("dlq", "edit", ids[0], "--app", "tests.support.flows:flow", "--yes")
        assert "nothing was done" in ran(handoff(*edit, EDITOR="true", VISUAL="")).stderr
        assert "ended with 1" in ran(handoff(*edit, EDITOR="false", VISUAL=""), 2).stderr
        assert redriven_records(rig) == []
        ran(handoff(*edit, EDITOR="sed -i s/reject//", VISUAL=""))
        rig.worker(*STAGES)
        assert_each_has_one_result(rig, ids)


#: What makes it unusable → key, value, headers; and the payload that mends it.
BAD = {
    "not JSON": (job_id(1).encode(), b'{"n": ', []),
    "wrong schema": (job_id(2).encode(), b'{"n": "many"}', [("tenant", b"acme")]),
    "key no id": (b"order-17\xff", b"{}", []),
    "no key": (None, b"{}", []),
    "null headers": (job_id(3).encode(), b"[]", [("x", None), ("x", b"\xff\0"), ("", b"")]),
    "forged hand-off": (job_id(4).encode(), b'{"n": 4}', [(h.FLOW, b"mail"), (h.SEQ, b"7")]),
    "bad step": (job_id(5).encode(), b'{"n": 5}', [(h.SEQ, b"two"), (h.FLOW, b"run")]),
}


def test_a_letter_of_each_bad_kind_is_complete_and_goes_on_once_it_is_edited(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, partitions=1) as rig:
        handoff = Command(settings, tmp_path)
        for key, value, headers in BAD.values():
            rig.put("work", key, value, headers)
        rig.flush()
        worker = rig.worker("work", "projector")
        rig.wait(lambda: len(rig.dead_letters("work")) == len(BAD), "a letter of each")
        rig.wait_drained("work")
        assert_projection_is_the_fold(rig)
        assert worker.stop() == 0
        originals = rig.records("work")
        listed = json.loads(handoff("dlq", "ls", "--letters", "-o", "json").stdout)
        jobs = []
        for what, original, shown in zip(BAD, originals, listed, strict=True):
            _assert_complete(what, original, rig.dead_letters("work")[len(jobs)])
            assert shown["origin"]["offset"] == original.offset, what
            assert shown["origin"]["timestamp_ms"] == original.timestamp_ms, what
            jobs.append(shown["job"])
            fields = tmp_path / "mended.json"
            fields.write_text(json.dumps({"n": 40 + len(jobs)}))
            edited = handoff(
                "dlq", "edit", shown["place"], "--app", MENDED, "--file", str(fields), "--yes"
            )
            ran(edited)
        assert len(set(jobs)) == len(BAD)
        rig.worker(*STAGES, app=MENDED)
        rig.wait_results(len(BAD))
        rig.wait_drained("work", "finish")
        results = {r.job: Job.model_validate_json(r.value or b"").n for r in rig.records("done")}
        assert results == {job: 41 + n for n, job in enumerate(jobs)}
        assert_no_step_twice(rig)
        assert_projection_is_the_fold(rig)
        for name, (key, _, headers) in zip(jobs, BAD.values(), strict=True):
            (record,) = [r for r in redriven_records(rig) if r.job == name]
            raw_key = [(h.RAW_KEY, key)] if key not in (None, name.encode()) else []
            kept = [*raw_key, *(x for x in headers if not x[0].startswith("handoff_"))]
            assert list(record.headers[4:-1]) == kept, "the original's own headers"
            assert record.headers[-1][0] == h.TRACEPARENT, "and the step that failed"


def _assert_complete(what: str, original: Record, letter: Record) -> None:
    assert (letter.key, letter.value) == (original.key, original.value), what
    assert letter.headers[: len(original.headers)] == original.headers, what
    assert letter.header(h.DLQ_TIMESTAMP) == b"%d" % original.timestamp_ms, what
