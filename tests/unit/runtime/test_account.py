"""What a stage says of itself: bounded, and nothing that Postgres refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from schemas.state import job_error
from streams.runtime.account import NAMED, held, told
from streams.runtime.delivery import Delivery

NOW_US = 1_700_000_000_000_000


def run(n: int, for_s: float) -> Any:
    started_us = NOW_US - round(for_s * 1e6)
    return SimpleNamespace(
        job_id=f"{n:032x}", attempt=1, task=object(), timer=None, started_us=started_us
    )


def wait(n: int, left_s: float, why: str = "busy") -> Any:
    return SimpleNamespace(
        job_id=f"{n:032x}",
        attempt=2,
        task=None,
        timer=object(),
        again_at=50.0 + left_s,
        why=job_error("retry", why),
    )


def behind(n: int) -> Any:
    return SimpleNamespace(job_id=f"{n:032x}", attempt=0, task=None, timer=None)


def account(*active: Any) -> dict[str, Any]:
    return held(cast("list[Delivery]", list(active)), NOW_US, 50.0)


def test_runs_and_waits_are_told_with_their_times_and_what_waits_behind_them_is_not() -> None:
    found = account(run(1, 2.0), run(2, 9.0), wait(3, 4.5), behind(4))
    assert (found["in_work"], found["waiting"]) == (2, 1)
    assert found["runs"] == [(f"{2:032x}", 1, 9.0), (f"{1:032x}", 1, 2.0)]
    assert found["waits"] == [(f"{3:032x}", 2, 4.5, "busy")]


def test_of_many_the_longest_are_named_and_all_are_counted() -> None:
    runs, waits = [run(n, n) for n in range(500)], [wait(n, n) for n in range(500, 900)]
    found = account(*runs, *waits)
    assert (found["in_work"], found["waiting"]) == (500, 400)
    assert [r[2] for r in found["runs"]] == [float(n) for n in range(499, 499 - NAMED, -1)]
    assert [w[2] for w in found["waits"]] == [float(n) for n in range(899, 899 - NAMED, -1)]


def test_whatever_a_handler_said_can_be_written() -> None:
    nasty = "half a pair: \ud800, and a NUL: \0" + "x" * 10_000
    made = told(nasty, account(wait(1, 1.0, nasty)))
    assert made.paused is not None
    assert made.account is not None
    assert "\0" not in made.paused
    assert made.paused.encode().startswith(b"half a pair: \\ud800, and a NUL: \\0x")
    [[_, _, _, reason]] = json.loads(made.account)["waits"]
    assert len(made.account) < 1_000
    assert "\0" not in reason
