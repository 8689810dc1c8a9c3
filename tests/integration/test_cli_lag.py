"""`handoff lag` on real services: each state is brought about, then asked for."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streams.config import Settings
from streams.postgres import connect
from streams.why.group_facts import lags
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

#: Signs of life every 0.1 s, and a session that soon expires.
QUICK = {"worker_lost_s": 0.6, "session_timeout_ms": 2_000}

Found = dict[str, dict[str, Any]]


class Lag:
    """`lag()`: by agent, the only partition's lag as data."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig = rig
        self.handoff = Command(rig.settings, folder)

    def __call__(self, *options: str) -> Found:
        done = self.handoff("lag", "-o", "json", *options)
        assert done.stdout, done.stderr
        rows = json.loads(done.stdout)
        assert done.returncode == any(row["state"] == "stuck" for row in rows)
        return {row["agent"]: row for row in rows}

    def until(self, fact: Callable[[Found], bool], what: str) -> Found:
        seen: Found = {}

        def is_so() -> bool:
            seen.update(self())
            return fact(seen)

        try:
            self._rig.wait(is_so, what)
        except AssertionError as e:
            raise AssertionError(f"{e}\nlast: {json.dumps(seen, indent=1)}") from None
        return seen


def states(found: Found) -> dict[str, tuple[int, str]]:
    return {agent: (row["records"], row["state"]) for agent, row in found.items()}


IDLE = (0, "idle")


def test_the_lag_of_groups_in_the_life_of_a_worker(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, partitions=1, **QUICK) as rig:
        lag = Lag(rig, tmp_path)
        before = [Job(n=n, gate="a" if n == 1 else "") for n in range(4)]
        rig.submit(before)

        found = lag()
        assert states(found) == {
            "take": (4, "stuck"),
            "work": IDLE,
            "finish": IDLE,
            "projector": IDLE,
            "timers": IDLE,
        }
        take = found["take"]
        assert (take["reason"], take["owner"], take["seconds"] > 0) == ("no_worker", None, True)
        assert take["why"] == "No worker runs it: handoff worker take."
        with connect(rig.settings) as conn:
            [beyond] = lags(conn, rig.settings, ["take"], limit=3)
        assert (beyond.seen.exact, beyond.seen.records >= 4) == (False, True)

        assert lag("--exact", "--stage", "take")["take"]["records"] == 4

        # One record is in work, and those behind it are finished: they are not behind.
        worker = rig.worker("take", "work", "finish", "projector")
        rig.wait_results(3)
        found = lag.until(
            lambda x: "1 in work" in x["work"]["why"] and not x["projector"]["records"],
            "the held job is all that is left",
        )
        assert states(found) == {
            "take": IDLE,
            "work": (1, "moving"),
            "finish": IDLE,
            "projector": IDLE,
            "timers": IDLE,
        }
        assert found["work"]["end"] > found["work"]["committed"] + 1
        [held] = [r for r in rig.records("work") if r.job == job_id(1)]
        assert found["work"]["committed"] == held.offset
        # Nothing is left of it but markers.
        assert found["finish"]["committed"] < found["finish"]["end"]
        owner = found["work"]["owner"]
        assert (owner["slot"], owner["pid"]) == (0, worker.process.pid)
        assert owner["host"] == platform.node()
        assert owner["incarnation"]
        assert found["timers"]["owner"] is None

        text = lag.handoff("lag", "--stage", "work", "--stage", "take")
        assert text.returncode == 0
        assert f"slot 0 ({owner['incarnation']} on {platform.node()})" in text.stdout
        assert rig.topic("finish") not in text.stdout
        unknown = lag.handoff("lag", "--stage", "nowhere")
        assert (unknown.returncode, unknown.stdout) == (2, "")
        assert "There is no stage or agent nowhere; there are finish, projector," in unknown.stderr

        worker.kill()
        found = lag.until(
            lambda x: x["work"]["reason"] == "no_worker", "the member's session has expired"
        )
        assert states(found)["work"] == (1, "stuck")

        worker = rig.worker("take", "work", "finish", "projector")
        rig.target.open("a")
        rig.wait_results(4)
        found = lag.until(lambda x: set(states(x).values()) == {IDLE}, "all groups are idle")
        assert worker.stop() == 0
