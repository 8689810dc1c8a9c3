"""`streams.testing.play`: an orchestration's test is a call and a comparison."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import count

import pytest

from schemas.state import JobError, Status
from streams import BadSetup, Emit, Reject, Retry, Run, Signal, Wait, orchestrator
from streams.testing import TRACE_ID, Takes, job_context, play
from tests.unit.orchestration.shop import (
    Entry,
    Order,
    Refund,
    Score,
    ask,
    book,
    refund,
    restock,
    score,
    undo,
)

STAGES = {each.name: each for each in (score, restock, book, undo)}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


async def test_values_models_and_stages_answer_calls() -> None:
    played = await play(refund, Order(), calls={**STAGES, "score": Score(risk=0.1), "restock": 7})
    assert played.status is Status.RUNNING
    assert played.outcome == Emit("done", Refund(path=("booked",)))
    assert played.commands == ("call score", "sleep", "call restock", "call book")
    assert played.called[1:] == (("restock", Order()), ("book", Order()))
    assert played.elapsed == HOUR


async def test_a_signal_comes_in_time_and_the_clock_skips_to_it() -> None:
    signals = [(2 * HOUR, "approval", {"ok": True}, "ann")]
    played = await play(refund, Order(amount=90), calls=STAGES, signals=signals)
    assert played.result == Refund(path=("booked",), by="ann")
    assert played.commands[1] == "signal approval"
    assert played.elapsed == 3 * HOUR


async def test_a_time_out_is_waited_for_in_no_time() -> None:
    late = [(3 * DAY + HOUR, "approval")]
    played = await play(refund, Order(amount=90), calls=STAGES, signals=late)
    assert (played.status, played.outcome) == (Status.FAILED, None)
    assert played.error == JobError(kind="rejected", message="nobody approved it")
    assert played.elapsed == 3 * DAY


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Reject("closed"), "rejected"),
        (ValueError("closed"), "ValueError"),
        (JobError(kind="closed", message="closed"), "closed"),
        (Takes(DAY, Reject("closed")), "rejected"),
        (lambda order: Reject(f"closed for {order.n}"), "rejected"),
    ],
)
async def test_a_call_that_fails_is_compensated(answer: object, kind: str) -> None:
    @orchestrator("strict", calls="book")
    async def strict(order: Order, run: Run) -> None:
        await run.call("book", order)

    failed = await play(strict, Order(), calls={"book": answer})
    assert failed.error is not None
    assert failed.error.kind == "run_failed"
    assert f"The call of book ({TRACE_ID}/0) failed: closed" in failed.error.message
    played = await play(refund, Order(), calls={**STAGES, "book": answer})
    assert played.result == Refund(path=("undone",))
    assert played.commands[-1] == "call undo"


async def test_a_cancel_is_compensated_and_ends_the_run_as_cancelled() -> None:
    calls = {**STAGES, "book": Takes(DAY, Entry(by="late"))}
    played = await play(refund, Order(), calls=calls, cancel_at=2 * HOUR)
    assert (played.status, played.commands[-1]) == (Status.CANCELLED, "call undo")
    assert played.elapsed == 2 * HOUR
    early = await play(refund, Order(), calls=calls, cancel_at=HOUR / 2)
    assert early.commands == ("call score", "sleep")


async def test_functions_answer_by_the_model_and_other_orchestrations_are_played() -> None:
    numbers = count(1)

    @orchestrator("all", calls="refund")
    async def both(order: Order, run: Run) -> Refund:
        one, two = await run.gather(
            run.call(refund, order, returns=Refund),
            run.call(refund, Order(amount=90), returns=Refund),
        )
        return Refund(path=(*one.path, *two.path))

    async def risk(order: Order) -> Score:
        next(numbers)
        return Score(risk=0.0)

    played = await play(both, Order(), calls={**STAGES, "refund": refund, "score": risk})
    assert played.result == Refund(path=("booked", "booked"))
    assert (next(numbers), played.elapsed) == (3, HOUR)


async def test_a_call_without_an_answer_and_a_wait_without_an_end_are_said() -> None:
    with pytest.raises(BadSetup, match=r"calls score, for which the test has no answer.*: none"):
        await play(refund, Order())

    @orchestrator("patient")
    async def patient(_: Order, run: Run) -> None:
        await run.signal("go")

    with pytest.raises(BadSetup, match="waits for signal go, and nothing more happens"):
        await play(patient, Order())
    with pytest.raises(BadSetup, match="ended in a Retry"):
        await play(refund, Order(), calls={"score": Retry()})
    with pytest.raises(BadSetup, match="is no JSON"):
        await play(refund, Order(), calls={"score": object()})
    with pytest.raises(BadSetup, match="Stage ask is no orchestration"):
        await play(ask, Order())


async def test_an_orchestration_that_depends_on_anything_else_is_found() -> None:
    async def diced(_: Order, run: Run) -> None:
        await run.sleep(timedelta(milliseconds=random.randint(1, 10**9)))

    with pytest.raises(BadSetup, match=r"run again over the same journal, its command 0 \(sleep\)"):
        await play(orchestrator("diced")(diced), Order())
    runs = count()

    async def ended(_: Order, run: Run) -> Refund:
        return Refund(by=f"{next(runs)}")

    with pytest.raises(BadSetup, match="it ends otherwise"):
        await play(orchestrator("ended")(ended), Order())

    async def called(_: Order, run: Run) -> None:
        if next(runs) % 2 == 0:
            await run.sleep(HOUR)
        await run.signal("go")

    with pytest.raises(BadSetup, match="its command 0 was 'sleep', and this code asks for"):
        await play(orchestrator("called")(called), Order(), signals=[(2 * HOUR, "go")])


def test_a_stage_that_waits_is_given_its_signal() -> None:
    assert ask(Order(), job_context()) == Wait("approval", timeout=3 * DAY)
    signed = job_context(signal=Signal("approval", {"ok": True}, "ann"))
    assert ask(Order(), signed) == Emit("done", Refund(by="ann"))
    assert ask(Order(), job_context(signal=Signal("approval", timed_out=True))) == Emit(
        "done", Refund(by="nobody")
    )
