"""`handoff replay` from a file: what it takes, prints and exits with; no service is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.state import Status
from streams.replay.bundle import bundle_of, write_bundle
from tests.support.commands import Command
from tests.unit.replay.made import SETTINGS, case, job
from tests.unit.replay.test_bundle import flow

NOWHERE = {
    "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "DATABASE_URL": "postgresql://127.0.0.1:1/none",
}
SOURCE = """
import structlog
from streams import Context, Emit, Flow, stage
from tests.unit.replay.made import Note

@stage("read", emits="keep")
def read(note: Note, _: Context) -> Emit:
    print("on stdout")
    structlog.get_logger().info("in the log")
    return Emit("keep", note.model_copy(update={"text": TEXT}))

flow = Flow("notes", (read,), sinks=("keep",))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    cases = [case(n, status=Status.DONE) for n in range(3)]
    path = tmp_path / "notes.json"
    path.write_bytes(write_bundle(bundle_of(job(0), flow, cases, SETTINGS)))
    return path


def replay(tmp_path: Path, module: str, text: str, *args: str):  # type: ignore[no-untyped-def]
    (tmp_path / f"{module}.py").write_text(SOURCE.replace("TEXT", repr(text)))
    return Command(SETTINGS, tmp_path)("replay", *args, "--app", f"{module}:flow", **NOWHERE)


def test_the_same_code_exits_with_0(tmp_path: Path, file: Path) -> None:
    done = replay(tmp_path, "same_notes", "", "--from-file", str(file))
    assert (done.returncode, done.stdout[:17]) == (0, "3 records: 3 same")


def test_a_changed_outcome_is_shown_with_examples_and_exits_with_1(
    tmp_path: Path, file: Path
) -> None:
    done = replay(tmp_path, "new_notes", "new", "--from-file", str(file), "--examples", "2")
    assert done.returncode == 1
    assert "changed  3  read  data.text" in done.stdout
    assert done.stdout.count("data.text: '' → 'new'") == 2


@pytest.mark.parametrize("processes", ["1", "2"])
def test_what_handlers_print_and_log_does_not_mix_with_the_report(
    tmp_path: Path, file: Path, processes: str
) -> None:
    args = ("--from-file", str(file), "-o", "json", "--jobs", processes)
    done = replay(tmp_path, "json_notes", "new", *args)
    assert json.loads(done.stdout)["counts"]["changed"] == 3, done.stdout
    assert "in the log" not in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "Name the records in one way"),
        (("--trace", "a", "--dlq", "all"), "Name the records in one way"),
        (("--trace", "a", "--from", "3"), "belong to --topic"),
        (("--topic", "notes.read", "--from", "soon"), "--from takes 90s, 15m"),
        (("--trace", "a", "--ignore", "a..b"), "'a..b' is no path"),
        (("--trace", "a", "--rate", "0"), "--rate takes 50/s"),
        (("--from-file", "none.json"), "none.json cannot be read"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_sentence(
    tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    done = replay(tmp_path, "no_notes", "", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_an_export_redacts_payloads_and_effects_only(tmp_path: Path) -> None:
    done = Command(SETTINGS, tmp_path)("export", "ab", "--redact", "key", **NOWHERE)
    assert done.returncode == 2
    assert "a path begins with data or effects.NAME" in done.stderr
