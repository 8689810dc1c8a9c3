"""Goal: the fate of a failed run by blame, and where it waits for the next one."""

from __future__ import annotations

import random
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from schemas.state import Status
from streams import Backoff, BadRecord, BadWorld, EffectParked
from streams.runtime.judge import GiveUp, RetryAsked, RunAgain, WorldIsBad, judge

POLICY = Backoff(attempts=4, first=timedelta(seconds=1), in_place=timedelta(seconds=5))


def fate(error: BaseException, attempt: int = 1, policy: Backoff = POLICY) -> object:
    return judge(error, stage="act", attempt=attempt, policy=policy, rng=random.Random(1))


def test_a_bad_world_is_nobodys_attempt_and_may_say_how_long_it_lasts() -> None:
    assert fate(BadWorld("away"), 99) == WorldIsBad("away", None)
    assert fate(BadWorld("busy", after_s=30)) == WorldIsBad("busy", 30)


@given(st.floats(0, 1_000), st.integers(1, 3))
def test_long_waits_are_not_held_in_memory(after_s: float, attempt: int) -> None:
    found = fate(RetryAsked(after_s, "busy"), attempt)
    assert isinstance(found, RunAgain)
    assert found.wait_s >= after_s
    assert found.in_place == (found.wait_s <= 5)
    assert found.error.message == f"Attempt {attempt} of 4 of stage act: RetryAsked: busy"


@given(st.floats(0, 1e9), st.integers(4, 100))
def test_no_wait_outlives_the_last_attempt(after_s: float, attempt: int) -> None:
    for error in (RetryAsked(after_s, "busy"), ValueError("no")):
        found = fate(error, attempt)
        assert isinstance(found, GiveUp)
        assert (found.status, found.error.kind) == (Status.FAILED, "handler_failed")


def test_errors_that_are_not_to_be_retried_end_the_job_at_once() -> None:
    policy = Backoff(attempts=4, retry_on=(OSError,))
    found = fate(ValueError("no"), 1, policy)
    assert isinstance(found, GiveUp)
    assert found.error.message == "Stage act failed once: ValueError: no"
    assert isinstance(fate(OSError("no"), 1, policy), RunAgain)
    # What the handler asked for is no error.
    assert isinstance(fate(RetryAsked(0, "busy"), 1, policy), RunAgain)
    assert isinstance(fate(BadRecord("no"), 1, Backoff(attempts=4)), GiveUp)
    assert isinstance(fate(EffectParked("?", kind="in_doubt", key="k"), 1), GiveUp)
