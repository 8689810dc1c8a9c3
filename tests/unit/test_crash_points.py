"""The crash points of the code, each on one line, each killed at by a test.

Found in the syntax trees, so a point that is added, renamed or no longer tested fails here.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[2]

_PROTOCOL = "crash/test_crash_points.py::test_a_worker_killed_at_a_point_of_the_protocol"
_HAND_OVER = "crash/test_crash_points.py::test_a_worker_killed_while_it_hands_over"
_JOURNAL = "crash/test_poison.py::test_a_worker_killed_at_the_points_of_the_journal"
_LEDGER = "crash/test_ledger_points.py::test_killed_"
_TIMERS = "crash/test_timers_killed.py::test_a_timekeeper_and_a_dispatcher_killed_at_each"
_PROJECTOR = "crash/test_projector_points.py::test_a_projector_killed_at_each_point"
_CANCEL = "crash/test_cancel_killed.py::test_commands_and_workers_killed_around_a_cancel"
_FORKS = "crash/test_fork_points.py::test_a_fork_killed_at_each_point"
_RUNS = "crash/test_run_points.py::test_a_run_killed_at_each_step"
_REBUILD = "integration/test_projection_rebuild.py::test_a_rebuild_that_is_killed"
_REDRIVE = "integration/test_redrive.py::test_a_redrive_of_1000_letters_killed_in_the_middle"

#: Point → the test (file, and the beginning of its name) that kills a child exactly there with work
#: in flight, and judges what the next life makes of it by topics, Postgres and the target's record.
CRASH_POINTS = {
    "poll.delivered": _PROTOCOL,
    "suspect.claimed": _PROTOCOL,
    "stage.decoded": _PROTOCOL,
    "stage.handled": _PROTOCOL,
    "commit.selected": _PROTOCOL,
    "commit.produced": _PROTOCOL,
    "commit.offsets_sent": _PROTOCOL,
    "commit.committed": _PROTOCOL,
    "poll.revoked": _HAND_OVER,
    "journal.begun": _JOURNAL,
    "journal.buried": _JOURNAL,
    "ledger.asked": f"{_LEDGER}before_the_claim",
    "ledger.claimed": f"{_LEDGER}before_the_call",
    "ledger.called": f"{_LEDGER}after_the_call_and_before_its_settlement",
    "ledger.reconciled": f"{_LEDGER}between_the_targets_word",
    "ledger.settled": f"{_LEDGER}after_the_settlement",
    "ledger.doubted": f"{_LEDGER}after_the_doubt",
    "projection.applied": _PROJECTOR,
    "projection.committed": _PROJECTOR,
    "projection.shadow_built": _REBUILD,
    "projection.swapping": _REBUILD,
    "join.applied": _FORKS,
    "join.decided": _FORKS,
    "cancel.ordered": _CANCEL,
    "cancel.woken": _CANCEL,
    "runs.happened": _RUNS,
    "runs.asked": _RUNS,
    "timers.stored": _TIMERS,
    "timers.taken": _TIMERS,
    "timers.dispatched": _TIMERS,
    "timers.deleted": _TIMERS,
    "redrive.planned": _REDRIVE,
    "redrive.produced": _REDRIVE,
    "redrive.recorded": _REDRIVE,
    "rerun.recorded": "integration/test_rerun.py::test_a_command_killed_before_it_sends",
}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _calls_of_reach() -> Iterator[tuple[str, ast.Call]]:
    for package in ("streams", "schemas", "agents", "infra"):
        for path in sorted((_REPOSITORY / package).rglob("*.py")):
            for node in ast.walk(_tree(path)):
                match node:
                    case ast.Call(func=ast.Name("reach") | ast.Attribute(attr="reach")):
                        yield f"{path.relative_to(_REPOSITORY)}:{node.lineno}", node


def _points() -> dict[str, str]:
    """Where each point is. A name that is computed could be told from no other."""
    found = {}
    for place, call in _calls_of_reach():
        assert len(call.args) == 1, place
        assert isinstance(call.args[0], ast.Constant), f"{place}: its name is no literal"
        found[place] = str(call.args[0].value)
    return found


def _armed(test: ast.AST) -> set[str]:
    """The points that a test (with its decorators) names: `name` or `name:n`."""
    texts = {
        node.value
        for node in ast.walk(test)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {re.sub(r":\d+$", "", text) for text in texts}


def test_each_point_stands_on_exactly_one_line() -> None:
    places = _points()
    doubled = {name for name, n in Counter(places.values()).items() if n > 1}
    assert {at: name for at, name in places.items() if name in doubled} == {}
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in places.values())


def test_each_point_is_killed_at_by_a_test() -> None:
    points = set(_points().values())
    assert points - CRASH_POINTS.keys() == set(), "write the test that kills there, and name it"
    assert CRASH_POINTS.keys() - points == set(), "no such points in the code"


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_the_test_of_a_point_is_there_and_arms_it(point: str) -> None:
    path, _, beginning = CRASH_POINTS[point].partition("::")
    tests = [
        node
        for node in _tree(_REPOSITORY / "tests" / path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith(beginning)
    ]
    assert [t.name for t in tests if point in _armed(t)], f"{CRASH_POINTS[point]} does not arm it"


_CHILD = """
from streams.crashpoints import arm, reach
arm({armed!r})
for n in range(5):
    print(n, flush=True)
    reach("here")
    reach("there")
"""


@pytest.mark.parametrize(
    ("armed", "passes", "code"),
    [(None, 5, 0), ("here", 1, -signal.SIGKILL), ("here:3", 3, -signal.SIGKILL), ("where", 5, 0)],
)
def test_a_point_kills_at_the_pass_that_it_is_armed_for_and_is_inert_otherwise(
    armed: str | None, passes: int, code: int
) -> None:
    child = subprocess.run(
        [sys.executable, "-c", _CHILD.format(armed=armed)],
        cwd=_REPOSITORY,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == code, child.stderr.decode()
    assert len(child.stdout.split()) == passes
