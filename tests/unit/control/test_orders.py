"""Orders as they lie in the control topic, what stands of them, and the records that wake."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import lineage
from streams.control import CANCELLED, Kind, Order, Standing, decode, error_of, job_key, stage_key
from streams.control.wakes import Waiting, wake
from streams.joins.wire import Cancel, read
from streams.names import Names
from tests.unit.runtime.fakes import FakeMessage, delivery, make_tracker

ROOT = "00000000000000000000000000000abc"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOBS = (ROOT, f"{ROOT}/1", f"{ROOT}/1/2", f"{ROOT}/12", f"{1:032x}")


def order(job: str, by: str = "eve") -> Order:
    return Order(Kind.CANCEL, job, by, AT, "wrong list")


@given(st.sampled_from(JOBS), st.text(max_size=400), st.text(max_size=9), st.datetimes())
def test_an_order_survives_its_record(job: str, by: str, reason: str, at: datetime) -> None:
    whole = Order(Kind.CANCEL, job, by, at.replace(tzinfo=UTC), reason)
    found = decode(whole.key, whole.value)
    assert found is not None
    assert (found.kind, found.target, found.at) == (whole.kind, whole.target, whole.at)
    clean = all(c.isprintable() for c in by + reason) and len(by) <= 300
    assert not clean or (found.by, found.reason) == (by, reason)
    assert "\0" not in found.by + found.reason


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"job:x", order(ROOT).value),
        (b"\xff", order(ROOT).value),
        (stage_key("mail.act"), order(ROOT).value),
        (job_key(ROOT), b"["),
        (job_key(ROOT), b"[]"),
        (job_key(ROOT), b'{"kind":"cancel","by":1,"at":"2026-03-01T12:00:00Z","reason":""}'),
        (job_key(ROOT), b'{"kind":"cancel","by":"a","at":"2026-03-01T12:00:00","reason":""}'),
    ],
)
def test_what_is_no_order_changes_nothing(key: bytes, value: bytes) -> None:
    standing = Standing()
    assert standing.apply(key, value) is None
    assert (standing.cancelled, standing.paused) == ({}, {})
    assert "cannot be read" in error_of(key, value, ROOT).message


@given(st.lists(st.tuples(st.sampled_from(JOBS), st.sampled_from(["ann", "bob", None]))))
def test_the_first_order_for_a_job_stands_until_it_is_taken_back(log: list[Any]) -> None:
    standing, wanted = Standing(), dict[str, str]()
    for job, by in log:
        standing.apply(job_key(job), None if by is None else order(job, by).value)
        if by is None:
            wanted.pop(job, None)
        else:
            wanted.setdefault(job, by)
    assert {job: each.by for job, each in standing.cancelled.items()} == wanted
    for job in JOBS:
        nearest = next((x for x in reversed(lineage(job)) if x in wanted), None)
        found = standing.cancels(job)
        assert (found and found.target) == nearest


def test_cancels_of_those_above_it_do_not_reach_a_shielded_job() -> None:
    standing = Standing()
    child, grandchild = f"{ROOT}/1", f"{ROOT}/1/2"
    standing.apply(job_key(ROOT), order(ROOT).value)
    assert standing.cancels(grandchild) is not None
    assert standing.cancels(grandchild, shielded=child) is None
    assert standing.cancels(child, shielded=child) is None
    # A rerun may bear the shield of its original: it says nothing of this job.
    assert standing.cancels(child, shielded=f"{1:032x}/7") is not None
    standing.apply(job_key(child), order(child).value)
    assert standing.cancels(grandchild, shielded=child) is not None


def test_the_last_word_on_a_stage_counts() -> None:
    standing = Standing()
    for by in ("ann", "bob"):
        pause = Order(Kind.PAUSE, "mail.act", by, AT, "the desk is full")
        assert standing.apply(pause.key, pause.value) is Kind.PAUSE
    found = standing.pauses("mail", "act")
    assert found is not None
    assert found.said == "by bob since 2026-03-01 12:00:00Z: the desk is full"
    assert standing.apply(stage_key("mail.act"), None) is Kind.PAUSE
    assert standing.pauses("mail", "act") is None


@pytest.mark.parametrize("ordered", [f"{ROOT}/1", ROOT])
@pytest.mark.parametrize("for_branches", [False, True])
def test_a_wake_is_what_its_hop_takes_it_for(ordered: str, for_branches: bool) -> None:
    job = f"{ROOT}/1"
    waiting = Waiting(ordered, job, "mail", "classify", 4, for_branches, 1_700_000_000_000_000)
    topic, key, value, headers = wake(waiting, order(ordered), Names("t-"))
    assert topic == ("t-mail.join" if for_branches else "t-mail.classify")
    assert value is not None
    if for_branches:
        assert read(key, headers, value, b"mail") == Cancel(4, ordered, value)
    d = delivery(make_tracker(), FakeMessage(value, key, headers))
    d.identify(b"mail")
    assert (d.job_id, d.seq, d.fault, d.claimable) == (job, 5, None, True)
    assert (d.cancelled_with, d.born_us) == (ordered, 1_700_000_000_000_000)
    whose = "" if ordered == job else f" with its ancestor {ROOT}"
    error = error_of(job_key(ordered), value, job)
    said = f"Cancelled{whose} by eve at 2026-03-01 12:00:00Z: wrong list"
    assert (error.kind, error.message) == (CANCELLED, said)
