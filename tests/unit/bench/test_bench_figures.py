"""Medians, ratios and percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench.figures import (
    median,
    per_million,
    per_thousand,
    percentiles_ms,
    ratio_by_round,
    ratios_by_round,
)


def test_the_ratio_compares_within_a_round_before_it_takes_the_median() -> None:
    # The machine was half as fast in round 1: the ratio of medians would say 1.0 x 2 / 3.
    ours = {0: 1_000.0, 1: 250.0, 2: 900.0}
    control = {0: 2_000.0, 1: 1_000.0, 2: 1_000.0}
    assert ratio_by_round(ours, control) == pytest.approx(0.5)


def test_a_round_that_one_of_the_two_missed_does_not_count() -> None:
    mine, theirs = {0: 10.0, 1: None, 2: 30.0}, {0: 20.0, 1: 20.0}
    assert ratio_by_round(mine, theirs) == 0.5
    assert ratios_by_round(mine, theirs) == [0.5]


def test_there_is_no_ratio_without_a_common_round() -> None:
    assert ratio_by_round({0: 10.0}, {1: 10.0}) is None
    assert ratio_by_round({0: 10.0}, {0: 0.0}) is None


def test_the_median_leaves_out_what_is_unknown() -> None:
    assert median([3.0, None, 1.0]) == 2.0
    assert median([None]) is None


def test_percentiles_are_in_ms_and_by_rank() -> None:
    waits = [n / 1000 for n in range(1, 101)]
    assert percentiles_ms(reversed(waits)) == {"p50": 51.0, "p95": 96.0, "p99": 100.0, "max": 100.0}


def test_no_values_have_no_percentiles() -> None:
    assert percentiles_ms([]) == {}


@given(st.lists(st.floats(0, 1_000), min_size=1))
def test_percentiles_rise_and_the_last_is_the_largest(waits: list[float]) -> None:
    found = list(percentiles_ms(waits).values())
    assert found == sorted(found)
    assert found[-1] == round(1000 * max(waits), 1)


def test_a_cost_is_per_thousand_jobs() -> None:
    assert per_thousand(5.0, 2_000) == 2.5
    assert per_thousand(None, 2_000) is None
    assert per_thousand(5.0, 0) is None


def test_a_cost_per_million_is_told_of_no_jobs_by_nothing() -> None:
    assert per_million(5.0, 2_000) == 2_500.0
    assert per_million(5.0, 0) is None
