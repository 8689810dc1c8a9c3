"""`handoff audit` of a flow that forks: runs that are well raise nothing, each fault has its name.

Faults are forged on the records and tables of a real run, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.audit import audited
from streams.config import Settings
from tests.support.audits import project
from tests.support.commands import Command
from tests.support.forking import MENDED, Whole, flow
from tests.support.rig import Rig

pytestmark = pytest.mark.services

APP = "tests.support.forking:flow"
EVERY = ("split", "part", "regather", "gather", "join")


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, flow) as made:
        yield made


def clean(rig: Rig) -> None:
    with audited(rig.settings) as verdict:
        assert list(verdict.findings()) == []
        assert verdict.horizon == {}


def test_forks_within_forks_raise_nothing_while_they_run_and_when_they_are_over(rig: Rig) -> None:
    worker = rig.worker(app=APP)
    rig.submit([Whole(n=n, parts=n % 6, depth=n % 3, wait_ms=n % 50) for n in range(60)])
    while rig.finished() < 60:
        with audited(rig.settings) as verdict:
            assert list(verdict.findings()) == []
    rig.wait_drained(*EVERY)
    project(rig)
    assert worker.stop() == 0
    clean(rig)


def test_every_rule_waiting_reopened_and_late_raises_nothing(rig: Rig, tmp_path: Path) -> None:
    """Goal: no false alarm. Method: joins that wait for a dead letter, fail by one, take errors,
    or run out of time; looked at then, after all letters of branches were redriven, and after
    those of joins."""
    worker = rig.worker(app=APP)
    wait = Whole(n=0, parts=4, bad=(1,))
    fail = Whole(n=1, parts=4, bad=(2,), on_missing="fail")
    errors = Whole(n=2, parts=4, bad=(0, 3), on_missing="errors")
    late = Whole(n=3, parts=3, lost=(1,), on_missing="errors", timeout_s=1)
    gone = Whole(n=4, parts=3, lost=(2,), on_missing="wait", timeout_s=1)
    rig.submit([wait, fail, errors, late, gone, Whole(n=5, parts=3, lost=(0,))])
    rig.wait(lambda: len(rig.dead_letters("join")) == 2, "two joins have failed")
    rig.wait_results(2)
    project(rig)
    with audited(rig.settings) as verdict:
        assert list(verdict.findings()) == []
        assert verdict.jobs.waiting == 2
    rig.target.open("lost")
    rig.wait_results(3)
    rig.wait_drained(*EVERY)
    project(rig)
    assert worker.stop() == 0
    clean(rig)
    handoff = Command(rig.settings, tmp_path)
    # Reopened while a branch is still missing: it waits.
    assert handoff("dlq", "redrive", "--filter", "stage=join", "--yes").returncode == 0
    rig.variables[MENDED] = "1"
    worker = rig.worker(app=APP)
    rig.wait_drained(*EVERY)
    project(rig)
    clean(rig)
    assert handoff("dlq", "redrive", "--filter", "stage=part", "--yes").returncode == 0
    rig.wait_results(6)
    rig.wait_drained(*EVERY)
    project(rig)
    assert worker.stop() == 0
    clean(rig)
