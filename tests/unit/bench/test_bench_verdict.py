"""The exactly-once verdict: each way of being wrong is named, and only that one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench.verdict import STEPS_PER_JOB, Step, Verdict, judge

SENT = {b"a", b"b", b"c"}


def arrived() -> Counter[bytes]:
    return Counter(SENT)


def stepped() -> Counter[Step]:
    return Counter((key, seq) for key in SENT for seq in range(1, STEPS_PER_JOB + 1))


def faults(verdict: Verdict) -> dict[str, int]:
    counts = asdict(verdict)
    del counts["sent"], counts["distinct"]
    return {name: n for name, n in counts.items() if n}


def test_each_job_once_and_each_step_once_is_exactly_once() -> None:
    verdict = judge(SENT, arrived(), stepped())
    assert verdict.exactly_once
    assert (verdict.sent, verdict.distinct) == (3, 3)


def test_a_job_that_did_not_arrive_is_lost() -> None:
    done = arrived()
    del done[b"b"]
    verdict = judge(SENT, done, stepped())
    assert faults(verdict) == {"lost": 1}
    assert not verdict.exactly_once


def test_a_job_that_arrived_three_times_is_two_duplicates() -> None:
    done = arrived() + Counter({b"b": 2})
    assert faults(judge(SENT, done, stepped())) == {"duplicates": 2}


def test_a_job_that_nobody_sent_is_foreign_and_does_not_hide_a_loss() -> None:
    done = Counter([b"a", b"b", b"x"])
    assert faults(judge(SENT, done, stepped())) == {"lost": 1, "foreign": 1}


def test_a_step_written_twice_shows_although_the_job_arrived_once() -> None:
    steps = stepped() + Counter({(b"a", 2): 1})
    assert faults(judge(SENT, arrived(), steps)) == {"repeated_steps": 1}


def test_a_step_that_is_not_on_job_state_is_missing() -> None:
    steps = stepped()
    del steps[(b"c", 3)]
    assert faults(judge(SENT, arrived(), steps)) == {"missing_steps": 1}


@pytest.mark.parametrize("fault", sorted(faults(Verdict(0, 0, 1, 1, 1, 1, 1))))
def test_any_fault_alone_denies_exactly_once(fault: str) -> None:
    verdict = judge(SENT, arrived(), stepped())
    assert not Verdict(**{**asdict(verdict), fault: 1}).exactly_once


@given(
    st.dictionaries(st.binary(min_size=1, max_size=1), st.integers(1, 4)),
    st.sets(st.binary(min_size=1, max_size=1)),
)
def test_the_counts_account_for_every_record(copies: dict[bytes, int], sent: set[bytes]) -> None:
    verdict = judge(sent, Counter(copies), Counter())
    assert verdict.distinct + verdict.lost == len(sent)
    assert verdict.distinct + verdict.foreign + verdict.duplicates == sum(copies.values())
