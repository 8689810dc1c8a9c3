"""The life of an effect as a table: every combination of what a claim may find."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import BadRecord, BadWorld, EffectNotDone
from streams.ledger.rules import (
    Ask,
    Owner,
    Row,
    Status,
    Step,
    is_alive,
    plan_claim,
    plan_failure,
)

owners = st.builds(Owner, slot=st.integers(0, 2), incarnation=st.sampled_from("ab"))
prints = st.sampled_from(("print-1", "print-2"))
asks = st.builds(
    Ask,
    key=st.just("k"),
    name=st.just("reply"),
    trace_id=st.just("t"),
    flow=st.just("f"),
    stage=st.just("act"),
    fingerprint=prints,
    idempotent=st.booleans(),
    reconcilable=st.booleans(),
)
rows = st.builds(
    Row,
    key=st.just("k"),
    status=st.sampled_from(Status),
    fingerprint=prints,
    idempotent=st.booleans(),
    slot=st.integers(0, 2),
    incarnation=st.sampled_from("ab"),
    fence=st.integers(1, 5),
    calls=st.integers(1, 5),
    expired=st.booleans(),
)
CALLS = (Step.CLAIM_AFRESH, Step.TAKE_OVER)


@given(rows, asks, owners)
def test_an_effect_that_may_have_happened_is_called_again_only_if_both_runs_call_it_idempotent(
    row: Row, ask: Ask, me: Owner
) -> None:
    if row.status is not Status.RELEASED and plan_claim(row, ask, me) in CALLS:
        assert row.idempotent
        assert ask.idempotent


@given(rows, asks, owners)
def test_the_target_is_asked_exactly_where_doubt_or_parking_would_be_the_answer(
    row: Row, ask: Ask, me: Owner
) -> None:
    without = plan_claim(row, replace(ask, reconcilable=False), me)
    step = plan_claim(row, replace(ask, reconcilable=True), me)
    if without in (Step.DOUBT, Step.PARK):
        assert step is Step.RECONCILE
    else:
        assert step is without


@given(rows, asks, owners)
def test_a_done_effect_is_never_called_and_never_loses_its_result(
    row: Row, ask: Ask, me: Owner
) -> None:
    if row.status is Status.DONE:
        same = row.fingerprint == ask.fingerprint
        assert plan_claim(row, ask, me) is (Step.ANSWER if same else Step.MISMATCH)


@given(rows, asks, owners)
def test_other_arguments_pass_only_where_nothing_has_happened(
    row: Row, ask: Ask, me: Owner
) -> None:
    step = plan_claim(row, ask, me)
    if row.fingerprint != ask.fingerprint:
        assert step is (Step.CLAIM_AFRESH if row.status is Status.RELEASED else Step.MISMATCH)


@given(rows, asks, owners)
def test_only_a_live_attempt_of_another_slot_is_waited_for(row: Row, ask: Ask, me: Owner) -> None:
    if plan_claim(row, ask, me) is Step.WAIT:
        assert row.status is Status.CLAIMED
        assert not row.expired
        assert row.slot != me.slot
    if row.slot == me.slot or row.expired:
        assert not is_alive(row, me)


@given(rows, asks, owners)
def test_a_claim_of_a_live_attempt_is_never_taken(row: Row, ask: Ask, me: Owner) -> None:
    if row.status is Status.CLAIMED and is_alive(row, me):
        assert plan_claim(row, ask, me) in (Step.WAIT, Step.MISMATCH)


class _Refused(EffectNotDone, BadWorld):
    pass


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("error", [BadRecord("no"), EffectNotDone("no"), _Refused("no")])
def test_an_error_that_says_not_done_releases_the_effect(
    error: Exception, idempotent: bool
) -> None:
    assert plan_failure(error, idempotent=idempotent, first=True) is Status.RELEASED


@pytest.mark.parametrize(
    "error",
    [ValueError(), BadWorld("gone"), TimeoutError(), asyncio.CancelledError(), KeyboardInterrupt()],
)
def test_any_other_error_leaves_the_outcome_unknown(error: BaseException) -> None:
    assert plan_failure(error, idempotent=True, first=True) is Status.CLAIMED
    assert plan_failure(error, idempotent=False, first=True) is Status.IN_DOUBT
    asked = plan_failure(error, idempotent=False, first=True, reconcilable=True)
    assert asked is Status.CLAIMED


def test_not_done_after_an_unknown_outcome_speaks_only_for_the_last_call() -> None:
    assert plan_failure(EffectNotDone("429"), idempotent=True, first=False) is Status.CLAIMED
