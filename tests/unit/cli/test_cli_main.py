"""The command line as a whole: help, version, errors as sentences, where output goes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import typer

from streams import cli
from streams.cli.load import load_flow
from streams.cli.output import duration, exit_code, moment
from streams.cli.times import since_when
from streams.config import Settings
from streams.errors import BadRecord, BadSetup, BadWorld, Fenced
from streams.logs import configure_logs

Run = Callable[..., int]

FLOW_SOURCE = """
from pydantic import BaseModel
from streams import Context, Done, Flow, stage

class Note(BaseModel):
    text: str

@stage("read")
def read(note: Note, job: Context) -> Done:
    return Done()

flow = Flow("notes", (read,))
number = 7
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `handoff ARGS…` in this process; returns the exit code."""

    def call(*args: str) -> int:
        monkeypatch.setattr(sys, "argv", ["handoff", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        return code if isinstance(code, int) else 0

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory that holds modules of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("declared_"):
            del sys.modules[name]


def test_the_version_needs_no_driver() -> None:
    code = (
        "import sys; from streams import cli; sys.argv = ['handoff', '--version']\n"
        "try:\n    cli.main()\nexcept SystemExit: pass\n"
        "drivers = {'faust', 'psycopg', 'confluent_kafka', 'opentelemetry.sdk'}\n"
        "sys.exit(', '.join(drivers & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("handoff ")


def test_help_lists_every_command_and_the_exit_codes(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    for command in (
        "up",
        "demo",
        "doctor",
        "submit",
        "worker",
        "jobs",
        "trace",
        "dlq",
        "topics",
        "db",
    ):
        assert f" {command} " in text
    assert "Exit codes" in text


@pytest.mark.parametrize(
    "args",
    [
        *[(c, "--help") for c in ("up", "demo", "doctor", "submit", "worker", "trace")],
        *[("jobs", c, "--help") for c in ("ls", "show")],
        *[("topics", c, "--help") for c in ("plan", "apply")],
        ("effects", "ls", "--help"),
        *[("dlq", c, "--help") for c in ("ls", "show", "edit", "redrive", "discard")],
        ("db", "migrate", "--help"),
    ],
)
def test_every_command_explains_itself(args: tuple[str, ...], run: Run) -> None:
    assert run(*args) == 0


def test_an_unknown_command_is_wrong_usage(run: Run) -> None:
    assert run("nonsense") == 2


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nothing", "is module:attribute"),
        ("no_such_module:flow", "no module no_such_module"),
        ("declared_notes:nothing", "no such attribute. It has declared_notes:flow."),
        ("declared_notes:number", "holds a int there"),
    ],
)
def test_an_app_that_is_none_is_a_sentence(
    app: str, said: str, here: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "declared_notes.py").write_text(FLOW_SOURCE)
    assert run("topics", "plan", "--app", app) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_a_flow_is_found_in_the_current_directory(here: Path) -> None:
    (here / "declared_here.py").write_text(FLOW_SOURCE)
    assert load_flow("declared_here:flow").name == "notes"


def test_a_module_that_lacks_a_dependency_says_which(here: Path) -> None:
    (here / "declared_needy.py").write_text("import not_installed_anywhere")
    with pytest.raises(BadSetup, match="needs not_installed_anywhere"):
        load_flow("declared_needy:flow")


def test_faults_inside_the_module_keep_their_traceback(here: Path) -> None:
    (here / "declared_broken.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        load_flow("declared_broken:flow")


def test_settings_that_are_not_valid_are_a_sentence(
    run: Run,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "declared_set.py").write_text(FLOW_SOURCE)
    monkeypatch.setenv("HANDOFF_PARTITIONS", "none")
    assert run("topics", "plan", "--app", "declared_set:flow") == 2
    assert "partitions" in capsys.readouterr().err


def test_exit_codes_follow_the_blame() -> None:
    errors = [BadRecord("r"), BadSetup("s"), BadWorld("w"), Fenced("f")]
    assert [exit_code(e) for e in errors] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (None, "-"),
        (0, "0 µs"),
        (999, "999 µs"),
        (1_500, "1.5 ms"),
        (60_000_000, "60 s"),
        (7_200_000_000, "120.0 min"),
    ],
)
def test_durations_have_three_digits_and_a_unit(microseconds: float | None, text: str) -> None:
    assert duration(microseconds) == text


def test_times_are_utc_with_milliseconds() -> None:
    assert moment(datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)) == "2026-01-02 03:04:05.678Z"
    assert moment(None) == ""


NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("2025-12-31T12:00:00+02:00", datetime(2025, 12, 31, 10, tzinfo=UTC)),
        ("2025-12-31", datetime(2025, 12, 31, tzinfo=UTC)),
    ],
)
def test_since_takes_an_age_or_a_time(text: str, then: datetime) -> None:
    assert since_when(text, NOW) == then


def test_since_refuses_what_is_neither() -> None:
    with pytest.raises(BadSetup, match="yesterday"):
        since_when("yesterday", NOW)


@pytest.fixture
def logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("logging_restored")
def test_all_logs_are_json_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings(log_format="json", log_level="info"))
    structlog.get_logger("ours").info("stage_paused", trace_id="4bf9")
    logging.getLogger("library").warning("slow %s", "disk")
    logging.getLogger("library").debug("unseen")
    ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["trace_id"], ours["level"]) == ("stage_paused", "4bf9", "info")
    assert (theirs["event"], theirs["level"]) == ("slow disk", "warning")


@pytest.mark.usefixtures("logging_restored")
def test_console_logs_have_no_colour_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(Settings(log_format="console"))
    structlog.get_logger("ours").warning("stage_paused", why="no broker")
    text = capsys.readouterr().err
    assert "stage_paused" in text
    assert "\x1b[" not in text


def test_the_help_of_every_command_says_its_exit_codes(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def walk(*path: str) -> None:
        assert run(*path, "--help") == 0
        assert "Exit codes: 0" in capsys.readouterr().out, path
        command: Any = typer.main.get_command(cli.app)
        for name in path:
            command = command.get_command(None, name)
        for name in getattr(command, "commands", {}) if path else command.list_commands(None):
            walk(*path, name)

    walk()
