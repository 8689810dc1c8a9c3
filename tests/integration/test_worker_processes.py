"""Goal: `handoff worker --processes N` shares the work among N processes, and outlives each.

Method: the command on real services; one of its processes is killed while jobs flow.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.flows import Job
from tests.support.judge import assert_all_done_once
from tests.support.rig import Rig
from tests.support.target import SOCKET_VARIABLE
from tests.support.worker import environment

pytestmark = pytest.mark.services

WORKER = (sys.executable, "-m", "streams.cli", "worker", "--app", "tests.support.flows:flow")


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path) as made:
        yield made


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def test_one_of_two_processes_is_killed(rig: Rig) -> None:
    env = environment(rig.settings, **{SOCKET_VARIABLE: str(rig.target.socket)})
    whole = subprocess.Popen([*WORKER, "--processes", "2"], env=env, stdin=subprocess.DEVNULL)
    try:
        first = rig.submit([Job(n=n) for n in range(200)])
        rig.wait_results(200)
        rig.wait(lambda: len(children(whole.pid)) == 2, "two processes run")
        os.kill(children(whole.pid)[0], signal.SIGKILL)
        second = rig.submit([Job(n=n) for n in range(200, 400)])
        rig.wait_results(400)
        rig.wait(lambda: len(children(whole.pid)) == 2, "the killed one was started again")
        assert_all_done_once(rig, [*first, *second])
    finally:
        whole.send_signal(signal.SIGTERM)
        code = whole.wait(60)
    assert code == 0


def test_a_wrong_set_up_ends_the_whole(rig: Rig) -> None:
    ended = subprocess.run(
        [*WORKER, "--processes", "2", "nothing"],
        env=environment(rig.settings),
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
