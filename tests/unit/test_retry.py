"""Goal: how long a failing handler waits, and after which errors it runs again."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import Backoff, BadSetup, retry_after

NOW = datetime(1994, 11, 6, 8, 49, 30, tzinfo=UTC)


@given(
    st.integers(1, 1_000),
    st.floats(0, 1_000),
    st.floats(1, 10),
    st.integers(1, 10_000),
    st.integers(),
)
def test_waits_grow_to_the_limit_and_end_with_the_attempts(
    attempts: int, first_s: float, factor: float, failed: int, seed: int
) -> None:
    policy = Backoff(attempts, timedelta(seconds=first_s), factor, timedelta(seconds=60))
    wait = policy.wait_seconds(failed, random.Random(seed))
    if failed >= attempts:
        assert wait is None
    else:
        assert wait is not None
        assert min(first_s, 60) / 2 - 1e-6 <= wait <= 60


@pytest.mark.parametrize(
    ("policy", "error", "again"),
    [
        (Backoff(), ValueError(), True),
        (Backoff(), asyncio.CancelledError(), True),
        (Backoff(retry_on=(OSError,)), TimeoutError(), True),
        (Backoff(retry_on=(OSError,)), ValueError(), False),
        (Backoff(give_up_on=(ValueError,)), UnicodeError(), False),
        (Backoff(give_up_on=(ValueError,)), OSError(), True),
        (Backoff(retry_on=(OSError,), give_up_on=(TimeoutError,)), TimeoutError(), False),
    ],
)
def test_the_class_of_an_error_decides_whether_it_is_tried_again(
    policy: Backoff, error: BaseException, again: bool
) -> None:
    assert policy.retries(error) is again


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"in_place": timedelta(seconds=-1)}, "in_place must not be negative"),
        ({"retry_on": OSError}, "retry_on takes a tuple of exception classes"),
        ({"give_up_on": (OSError(),)}, "give_up_on takes a tuple of exception classes"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSetup, match=says):
        Backoff(**wrong)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("9" * 400, 999_999_999.0),
        # The three forms of a date that RFC 9110, 5.6.7 asks for.
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7.0),
        ("Sun Nov  6 08:49:37 1994", 7.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        (None, None),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("²", None),
        ("soon", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after.seconds(value, NOW) == seconds


def test_a_two_digit_year_that_seems_far_ahead_is_past() -> None:
    assert retry_after.seconds("Sunday, 06-Nov-60 08:49:37 GMT", NOW) == 0.0


@given(st.text(max_size=60))
def test_no_header_at_all_makes_it_raise(value: str) -> None:
    found = retry_after.seconds(value, NOW)
    assert found is None or found >= 0
