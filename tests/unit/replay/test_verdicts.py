"""Cases run through stages: which verdict each gets, and what is never done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schemas.state import JobError, Status
from streams import Backoff, BadRecord, BadWorld, Context, Done, Emit, Flow, Reject, Retry, stage
from streams.context import EffectCall
from streams.ledger.values import fingerprint
from streams.replay.effects import Policy
from streams.replay.facts import KeptEffect
from streams.replay.paths import parse_path
from streams.replay.verdict import Verdict
from tests.unit.replay.made import Note, case, failed, job, judged, kept

CALLED: list[str] = []
V = Verdict


@stage("keep")
def keep(note: Note, _: Context) -> Done:
    return Done(note)


def flow_of(handler: Any, **options: Any) -> Flow:
    read = stage("read", emits=("keep", "out"), **options)(handler)
    return Flow("notes", (read, keep), sinks=("out",))


async def file(text: str, *, idempotency_key: str) -> str:
    CALLED.append(idempotency_key)
    return "real"


def print_of(n: int, text: str) -> str:
    key = f"{job(n)}:read:0:file"
    return fingerprint(EffectCall(key, "file", job(n), "notes", "read", file, (text,), {}, False))


async def filing(note: Note, context: Context) -> Emit:
    number = await context.effect("file", file, f"note {note.n}")
    return Emit("keep", Note(n=note.n, text=number))


@pytest.fixture(autouse=True)
def nothing_is_called() -> Any:
    CALLED.clear()
    yield
    assert CALLED == []


def one(flow: Flow, *cases: Any, **options: Any) -> tuple[Verdict, str]:
    (found,) = judged(flow, *cases, **options)
    return found.verdict, found.kind


@pytest.mark.parametrize(
    ("outcome", "real", "said"),
    [
        (Emit("keep", Note(n=3)), {}, (V.SAME, "")),
        (Emit("keep", Note(n=4)), {}, (V.CHANGED, "data.n")),
        (Emit("out", Note(n=3)), {}, (V.CHANGED, "status: running → done, to: keep → out")),
        (Done(), {}, (V.CHANGED, "status: running → done, to: keep → nothing")),
        (
            Reject("no"),
            {},
            (
                V.FAILED,
                "status: running → failed, to: keep → nothing, error.kind: nothing → rejected",
            ),
        ),
        (Reject("no"), failed("rejected", "no"), (V.SAME, "")),
        (Reject("no"), failed("rejected", "not"), (V.CHANGED, "error.message: not → no")),
        (Reject("no"), failed("bad_record"), (V.FAILED, "error.kind: bad_record → rejected")),
        (
            Emit("keep", Note(n=3)),
            failed("rejected"),
            (
                V.CHANGED,
                "status: failed → running, to: nothing → keep, error.kind: rejected → nothing",
            ),
        ),
    ],
)
def test_an_outcome_is_compared_with_the_step_that_was(
    outcome: Any, real: dict[str, Any], said: tuple[Verdict, str]
) -> None:
    def handler(note: Note, _: Context) -> Emit | Done | Reject:
        return outcome

    assert one(flow_of(handler), case(3, **real)) == said


def test_what_is_ignored_by_path_is_no_difference() -> None:
    def handler(note: Note, _: Context) -> Emit:
        return Emit("keep", Note(n=note.n, text=str(time.time())))

    flow = flow_of(handler)
    assert one(flow, case(3)) == (V.CHANGED, "data.text")
    assert one(flow, case(3), ignored=[parse_path("data.text")]) == (V.SAME, "")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("x"), "handler_failed"),
        (BadRecord("x"), "bad_record"),
        (BadWorld("x"), "bad_world"),
    ],
)
def test_what_a_handler_raises_is_judged_as_a_worker_does(error: Exception, kind: str) -> None:
    runs = []

    def handler(note: Note, context: Context) -> Emit:
        runs.append(context.attempt)
        raise error

    flow = flow_of(handler, retry=Backoff(attempts=3))
    (found,) = judged(flow, case(3))
    assert found.verdict is V.FAILED
    assert f"error.kind: nothing → {kind}" in found.kind
    assert found.message.endswith("x")
    # Retries in place follow at once: nobody waits.
    assert runs == ([1, 2, 3] if kind == "handler_failed" else [1])


def test_a_retry_counts_attempts_and_a_long_one_is_the_outcome_waiting() -> None:
    def handler(note: Note, context: Context) -> Emit | Retry:
        if note.n == 4:
            return Retry(timedelta(hours=1), "later")
        return Retry() if context.attempt < 3 else Emit("keep", note)

    short, long = judged(flow_of(handler, retry=Backoff(attempts=5)), case(3), case(4))
    assert short.verdict is V.SAME
    assert (long.verdict, long.kind[:26]) == (V.FAILED, "status: running → waiting,")


def test_a_record_that_is_not_valid_is_the_dead_letter_that_it_was() -> None:
    def handler(note: Note, _: Context) -> Emit:
        return Emit("keep", note)

    bad = case(3, **failed("bad_record"))
    assert bad.record is not None
    bad = replace(bad, record=replace(bad.record, value_=b"no note"))
    assert one(flow_of(handler), bad) == (V.SAME, "")


def test_an_effect_is_answered_from_what_is_kept() -> None:
    happened = case(3, (kept(3, print_of(3, "note 3")),), data='{"n":3,"text":"T-1"}')
    assert one(flow_of(filing), happened) == (V.SAME, "")


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ((), (V.NEW_EFFECT, "effect file")),
        ((kept(3, "other"),), (V.CHANGED, "effect file: other arguments")),
        ((kept(3, "other", "in_doubt", None),), (V.CHANGED, "effect file: other arguments")),
        ((kept(3, "other", "released", None),), (V.UNKNOWN, "no answer is kept of effect file")),
        ((kept(3, "other", "claimed", None),), (V.UNKNOWN, "no answer is kept of effect file")),
    ],
)
def test_an_effect_without_an_answer_ends_the_run(
    effects: tuple[KeptEffect, ...], said: tuple[Verdict, str]
) -> None:
    went_on = []

    async def handler(note: Note, context: Context) -> Emit:
        try:
            return await filing(note, context)
        except Exception:
            went_on.append(note)
            raise

    assert one(flow_of(handler), case(3, effects)) == said
    assert went_on == []


def test_a_handler_that_catches_everything_changes_no_verdict() -> None:
    async def handler(note: Note, context: Context) -> Emit:
        try:
            return await filing(note, context)
        except BaseException:
            return Emit("keep", note)

    assert one(flow_of(handler), case(3)) == (V.NEW_EFFECT, "effect file")


def test_a_missing_effect_of_a_time_that_was_pruned_is_unknown() -> None:
    assert one(flow_of(filing), case(3, pruned=True))[0] is V.UNKNOWN


def test_all_effects_are_blocked_if_told_to() -> None:
    happened = case(3, (kept(3, print_of(3, "note 3")),), data='{"n":3,"text":"T-1"}')
    assert one(flow_of(filing), happened, policy=Policy.BLOCK) == (V.NEW_EFFECT, "effect file")


@pytest.mark.parametrize("kind", ["in_doubt", "fingerprint_mismatch"])
def test_a_job_that_was_parked_for_its_effect_is_parked_again(kind: str) -> None:
    mine = print_of(3, "note 3") if kind == "in_doubt" else "other"
    status = "in_doubt" if kind == "in_doubt" else "done"
    parked = {"status": Status.WAITING, "to": (), "data": None}
    error = JobError(kind=kind, message="")
    happened = case(3, (kept(3, mine, status, None),), error=error, **parked)
    assert one(flow_of(filing), happened) == (V.SAME, "")


def test_an_effect_that_is_not_asked_for_any_more_is_a_difference_on_the_last_step_only() -> None:
    def handler(note: Note, _: Context) -> Emit:
        return Emit("keep", note)

    effects = (kept(3, "any"),)
    flow = flow_of(handler)
    assert one(flow, case(3, effects)) == (V.CHANGED, "effects.file: done → not asked for")
    assert one(flow, case(3, effects, is_last=False)) == (V.SAME, "")


def test_handlers_run_at_once_up_to_the_stage_s_concurrency() -> None:
    running, most = 0, 0

    async def handler(note: Note, _: Context) -> Emit:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Emit("keep", note)

    found = judged(flow_of(handler, concurrency=4), *[case(n) for n in range(20)])
    assert most == 4
    assert {f.verdict for f in found} == {V.SAME}
    assert [f.job for f in found] == [job(n) for n in range(20)]


def test_a_handler_that_does_not_end_is_stopped_and_its_neighbours_are_judged() -> None:
    async def handler(note: Note, _: Context) -> Emit:
        if note.n == 3:
            await asyncio.Event().wait()
        return Emit("keep", note)

    once = Backoff(attempts=1)
    flow = flow_of(handler, concurrency=2, timeout=timedelta(milliseconds=50), retry=once)
    found = judged(flow, *[case(n) for n in range(6)])
    assert [f.verdict for f in found] == [V.SAME] * 3 + [V.FAILED] + [V.SAME] * 2
    assert "handler_failed" in found[3].kind


def test_prepare_runs_once_before_the_first_record() -> None:
    told: list[str] = []

    def handler(note: Note, _: Context) -> Emit:
        told.append("run")
        return Emit("keep", note)

    judged(flow_of(handler, prepare=lambda: told.append("prepare")), case(1), case(2))
    assert told == ["prepare", "run", "run"]


def test_what_has_nothing_to_compare_with_is_never_called_same() -> None:
    def handler(note: Note, _: Context) -> Emit:
        raise AssertionError("it is not run")

    lost = replace(case(3), step=None, because="no step is known of it")
    gone = replace(case(4), record=None, because="its record has expired")
    copy = replace(case(5), step=None, because="duplicate", skip=True)
    found = judged(flow_of(handler), lost, gone, copy)
    assert [f.verdict for f in found] == [V.UNKNOWN, V.UNKNOWN, V.SKIPPED]
    assert found[1].job == job(4)
