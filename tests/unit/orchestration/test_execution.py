"""The rules of a run, each by events one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from schemas.state import Status, job_error
from streams import CallFailed, Done, Emit, Reject, Run, RunCancelled, Signal, TimedOut
from streams.orchestration import execution as under_test
from streams.orchestration.execution import End, Event, Execution, Known, describe
from streams.orchestration.run import RunId
from tests.unit.orchestration.shop import Order, Score, score

RUN = RunId("ab" * 16, 3, "shop", "refund")
SECOND = timedelta(seconds=1)
Function = Callable[[Order, Run], Coroutine[Any, Any, Any]]


class Stand:
    """A run whose events a test makes, a second apart."""

    def __init__(self, function: Function, known: Sequence[tuple[str, str]] = ()) -> None:
        kept = [Known(*each) for each in known]
        self.run = Execution(function, Order(), RUN, calls=("a", "b", "score"), known=kept)
        self._at_us = 0
        self.events: list[Event] = []

    def tell(self, kind: str, ref: object = "", detail: str = "", value: bytes = b"") -> Stand:
        self._at_us += 1_000_000
        event = Event(kind, f"{ref}", detail, value, self._at_us)
        self.events.append(event)
        self.run.feed(event)
        return self

    def start(self) -> Stand:
        return self.tell("start")

    def done(self, child: int, value: object = None) -> Stand:
        return self.tell("call", child, "done", orjson.dumps(value))

    def failed(self, child: int, message: str = "no", status: str = "failed") -> Stand:
        return self.tell(
            "call", child, status, job_error("bad", message).model_dump_json().encode()
        )

    def timer(self, n: int) -> Stand:
        return self.tell("timer", n)

    def signal(self, name: str, value: object = None) -> Stand:
        return self.tell("signal", len(self.events), name, Signal(name, value, "ann").to_json())

    def cancel(self) -> Stand:
        return self.tell("cancel", value=b'{"by":"ann","reason":"too late"}')

    @property
    def commands(self) -> list[str]:
        return [str(each) for each in self.run.commands]

    @property
    def waits(self) -> list[str]:
        return [str(each.command) for each in self.run.waits]

    @property
    def end(self) -> End:
        assert self.run.end is not None
        return self.run.end

    @property
    def error(self) -> str:
        assert self.end.error is not None
        return self.end.error.message

    @property
    def said(self) -> object:
        """What the function returned in a `Said`."""
        assert isinstance(self.end.outcome, Done), self.end
        assert isinstance(self.end.outcome.result, Said), self.end
        return self.end.outcome.result.what


class Said(BaseModel):
    what: Any


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Runs that a test leaves are closed as a worker does."""
    made: list[Execution] = []
    original = Execution.__init__

    def init(self: Execution, *args: Any, **more: Any) -> None:
        made.append(self)
        original(self, *args, **more)

    Execution.__init__ = init  # type: ignore[method-assign]
    yield
    Execution.__init__ = original  # type: ignore[method-assign]
    for each in made:
        each.close()


# -- gather and first_of -----------------------------------------------------------------------


async def pair(_: Order, run: Run) -> Said:
    try:
        return Said(what=await run.gather(run.call("a", Order()), run.call("b", Order())))
    except CallFailed as e:
        return Said(what=[e.job_id, e.stage, e.status.value, e.error.message])


def test_a_gather_waits_for_all_and_gives_results_in_the_order_of_its_arguments() -> None:
    stand = Stand(pair).start().done(1, "second")
    assert (stand.waits, stand.run.end) == (["call a"], None)
    assert stand.done(0, "first").said == ("first", "second")


def test_a_gather_raises_the_first_failure_of_its_arguments_once_all_are_over() -> None:
    stand = Stand(pair).start().failed(1, "b first")
    assert stand.run.end is None, "the other is still under way"
    wanted = [f"{RUN.trace_id}/0", "a", "cancelled", "a last"]
    assert stand.failed(0, "a last", "cancelled").said == wanted
    one = Stand(pair).start().failed(1, "b").done(0)
    assert one.said == [f"{RUN.trace_id}/1", "b", "failed", "b"]


def test_a_gather_of_nothing_waits_for_nothing() -> None:
    async def nothing(_: Order, run: Run) -> Said:
        return Said(what=await run.gather())

    assert Stand(nothing).start().said == ()


async def race(_: Order, run: Run) -> Said:
    a, b = run.call("a", Order()), run.call("b", Order())
    first = await run.first_of(a, b)
    return Said(what=[first is a, await first])


def test_the_first_of_two_is_by_the_journal_not_by_the_code() -> None:
    assert Stand(race).start().done(1, 2).said == [False, 2]
    assert Stand(race).start().done(0, 1).said == [True, 1]

    async def late(order: Order, run: Run) -> Said:
        a, b = run.call("a", Order()), run.call("b", Order())
        await run.sleep(SECOND)
        return Said(what=(await run.first_of(a, b)) is a)

    both = Stand(late).start().done(1).done(0).timer(2)
    assert both.said is False


def test_the_others_stay_under_way_and_can_be_awaited_later() -> None:
    async def both(_: Order, run: Run) -> Said:
        a, b = run.call("a", Order()), run.call("b", Order())
        first = await run.first_of(a, b)
        return Said(what=[await first, await first, await a, await b])

    assert Stand(both).start().done(1, "b").done(0, "a").said == ["b", "b", "a", "b"]


def test_the_first_of_nothing_is_refused() -> None:
    async def none(_: Order, run: Run) -> None:
        await run.first_of()

    assert "waits for the first of nothing" in Stand(none).start().error


# -- signals and timers ------------------------------------------------------------------------


async def two_signals(_: Order, run: Run) -> Said:
    one, two = await run.gather(run.signal("go"), run.signal("go"))
    return Said(what=[one.value, two.value])


def test_two_that_wait_for_one_name_get_a_signal_each_in_order() -> None:
    assert Stand(two_signals).start().signal("go", 1).signal("stop").signal("go", 2).said == [1, 2]


def test_signals_that_came_early_are_there_when_they_are_asked_for() -> None:
    stand = Stand(two_signals).signal("go", 1).signal("go", 2)
    assert stand.commands == [], "nothing runs before it has begun"
    assert stand.start().said == [1, 2]
    assert stand.run.taken == {1, 2}


async def patient(_: Order, run: Run) -> Said:
    try:
        signal = await run.signal("go", timeout=SECOND)
    except TimedOut as e:
        again = await run.signal("go")
        return Said(what=[e.name, again.value])
    return Said(what=[signal.value, signal.by])


def test_a_signal_and_its_time_out_count_in_the_order_in_which_they_came() -> None:
    assert Stand(patient).start().signal("go", 1).said == [1, "ann"]
    timed_out = Stand(patient).start().timer(0)
    assert timed_out.waits == ["signal go"]
    assert timed_out.signal("go", 2).said == ["go", 2]

    async def busy(order: Order, run: Run) -> Said:
        pending = run.signal("go", timeout=SECOND)
        await run.call("a", order)
        return Said(what=(await pending).value)

    assert Stand(busy).start().signal("go", 3).timer(0).done(0).said == 3
    late = Stand(busy).start().timer(0).signal("go", 3).done(0)
    assert late.error == "Orchestration refund failed: TimedOut: signal go had not come in time"


def test_a_signal_goes_to_who_awaits_first_and_one_given_up_takes_none() -> None:
    async def given_up(_: Order, run: Run) -> Said:
        await run.first_of(run.signal("go"), run.call("a", Order()))
        return Said(what=(await run.signal("go")).value)

    assert Stand(given_up).start().done(0).signal("go", 1).said == 1


def test_a_sleep_is_over_at_its_timer_and_now_is_when_that_came() -> None:
    async def nap(_: Order, run: Run) -> Said:
        began = run.now()
        await run.sleep(timedelta(hours=1))
        await run.sleep(-SECOND)
        return Said(what=[began, run.now()])

    stand = Stand(nap).start()
    assert describe(stand.run.commands[0]) == "sleep until 1970-01-01T01:00:01Z"
    stand.timer(0)
    assert stand.run.commands[1].due_us == 2_000_000, "never before now"
    at = [datetime.fromtimestamp(s, UTC) for s in (1, 3)]
    assert stand.timer(1).said == at
    assert stand.timer(1).timer(7).said == at, "nothing happens after the end"


# -- cancel ------------------------------------------------------------------------------------


async def compensating(_: Order, run: Run) -> Said:
    try:
        await run.gather(run.call("a", Order()), run.sleep(SECOND))
    except RunCancelled:
        await run.call("b", Order())
        raise
    return Said(what="whole")


def test_a_cancel_is_raised_where_the_run_waits_and_its_compensation_runs() -> None:
    stand = Stand(compensating).start().cancel()
    assert stand.commands == ["call a", "sleep", "call b"]
    assert [c.shielded for c in stand.run.commands] == [False, False, True]
    stand.done(0)
    assert stand.waits == ["call b"]
    stand.done(1)
    assert stand.end.status is Status.CANCELLED
    assert stand.error == "cancelled by ann: too late"


def test_a_cancel_before_the_beginning_and_one_after_the_end() -> None:
    before = Stand(compensating).cancel()
    assert before.run.end is None
    assert before.start().commands[-1] == "call b"
    after = Stand(compensating).start().done(0).timer(1)
    assert after.cancel().said == "whole"


def test_a_cancel_that_a_run_was_not_reached_by_is_left_and_two_are_one() -> None:
    async def quick(_: Order, run: Run) -> None:
        await run.signal("go")

    stand = Stand(quick).signal("go").cancel().start()
    assert stand.end.status is Status.DONE
    assert stand.run.taken == {1}
    twice = Stand(compensating).start().cancel().cancel()
    assert twice.run.taken == {2, 3}


def test_a_run_may_end_otherwise_than_as_cancelled_and_is_cancelled_once() -> None:
    async def stubborn(_: Order, run: Run) -> Said:
        try:
            await run.call("a", Order())
        except RunCancelled as e:
            await run.call("b", Order())
            return Said(what=[e.by, e.reason, run.cancelled])
        raise AssertionError

    stand = Stand(stubborn).start().cancel().cancel()
    assert stand.run.end is None
    assert stand.done(1).said == ["ann", "too late", True]


# -- what the function may do --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        (None, Status.DONE, None),
        (Done(), Status.DONE, None),
        (Said(what=1), Status.DONE, None),
        (Emit("done", Said(what=1)), Status.RUNNING, None),
        (Reject("no"), Status.FAILED, "rejected"),
        (7, Status.FAILED, "bad_record"),
        (ValueError("so"), Status.FAILED, "run_failed"),
    ],
)
def test_what_a_function_ends_with(outcome: object, status: Status, kind: str | None) -> None:
    async def ending(_: Order, run: Run) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    end = Stand(ending).start().end
    assert (end.status, end.error and end.error.kind, end.parked) == (status, kind, False)


def test_a_result_that_is_no_such_model_fails_the_run() -> None:
    async def reading(order: Order, run: Run) -> Said:
        return Said(what=(await run.call(score, order, returns=Score)).risk)

    assert Stand(reading).start().done(0, {"risk": 0.5}).said == 0.5
    bad = Stand(reading).start().done(0, {"risk": "high"})
    assert bad.end.error is not None
    assert bad.end.error.kind == "bad_record"
    assert f"The result of {RUN.trace_id}/0 is no Score: risk: Input should be" in bad.error

    async def wrong(_: Order, run: Run) -> None:
        await run.call(score, Score(risk=1))

    assert "calls score with a Score; it takes Order" in Stand(wrong).start().error


def test_an_error_that_says_nothing_is_a_failure_nevertheless() -> None:
    stand = Stand(pair).start().tell("call", 0, "failed", b"?").done(1)
    assert stand.said == [f"{RUN.trace_id}/0", "a", "failed", "it says no more"]


async def _asleep() -> None:
    await asyncio.sleep(60)


async def _future() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("foreign", [_asleep, _future, lambda: asyncio.sleep(0)])
async def test_what_is_nothing_of_the_run_parks_it(foreign: Callable[[], Any]) -> None:
    async def waiting(_: Order, run: Run) -> None:
        await foreign()

    stand = Stand(waiting).start()
    assert (stand.end.status, stand.end.parked) == (Status.WAITING, True)
    assert stand.error.startswith("Orchestration refund awaited ")
    assert "which is nothing of its run" in stand.error


def test_a_call_that_is_not_declared_parks_the_run() -> None:
    async def undeclared(_: Order, run: Run) -> None:
        await run.call("z", Order())

    stand = Stand(undeclared).start()
    assert stand.end.parked
    assert stand.error == (
        "Orchestration refund calls z, but declares a, b, score: add it to its `calls`."
    )


def test_too_many_commands_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_COMMANDS", 3)

    async def many(_: Order, run: Run) -> None:
        for _n in range(4):
            run.call("a", Order())

    stand = Stand(many).start()
    assert len(stand.commands) == 3
    assert "it has issued 3 commands, the most that one run may have" in stand.error


def test_dice_ids_and_the_clock_are_the_same_however_often_it_is_run() -> None:
    async def dicing(_: Order, run: Run) -> Said:
        before = [run.random(), run.random(), run.id(), run.id(), run.now(), run.trace_id]
        await run.call("a", Order())
        return Said(what=[*before, run.random(), run.id()])

    first = Stand(dicing).start().done(0)
    again = Stand(dicing, known=[("call", "a")])
    for each in first.events:
        again.run.feed(each)
    assert again.said == first.said
    assert isinstance(first.said, list)
    assert len(set(map(str, first.said))) == 8


# -- code that changed ---------------------------------------------------------------------------


async def before(_: Order, run: Run) -> None:
    await run.call("a", Order())
    await run.sleep(SECOND)


KNOWN = [("call", "a"), ("sleep", "")]


def fit(function: Function) -> Stand:
    """Other code over the journal of `before`, which waits for its timer."""
    stand = Stand(function, known=KNOWN).start().done(0)
    stand.run.check()
    return stand


@pytest.mark.parametrize("hides", [False, True])
def test_code_that_asks_for_something_else_is_parked(hides: bool) -> None:
    async def changed(_: Order, run: Run) -> Said:
        await run.call("a", Order())
        try:
            await run.call("b", Order())
        except Exception:
            if hides:
                return Said(what="hidden")
        return Said(what="gone on")

    stand = fit(changed)
    assert (stand.end.status, stand.end.parked) == (Status.WAITING, True)
    assert stand.end.error is not None
    assert stand.end.error.kind == "code_changed"
    assert "its command 1 was 'sleep', and this code asks for 'call b'" in stand.error
    assert stand.commands == ["call a"], "nothing is asked for"


def test_code_that_hides_even_that_is_parked() -> None:
    async def hiding(_: Order, run: Run) -> Said:
        try:
            await run.call("b", Order())
        except BaseException:
            return Said(what="hidden")
        raise AssertionError

    assert "its command 0 was 'call a', and this code asks for 'call b'" in fit(hiding).error


def test_code_that_asks_for_less_is_parked() -> None:
    async def less(_: Order, run: Run) -> None:
        await run.call("a", Order())

    assert "its command 1 was 'sleep', and this code asks for 'none'" in fit(less).error

    async def other(_: Order, run: Run) -> None:
        a = run.call("a", Order())
        await run.signal("first")
        await a

    assert "its command 1 was 'sleep', and this code asks for 'signal first'" in fit(other).error


def test_code_that_goes_on_otherwise_at_the_end_fits() -> None:
    async def longer(order: Order, run: Run) -> Said:
        await before(order, run)
        return Said(what=await run.call("b", Order()))

    stand = fit(longer)
    assert stand.run.end is None
    assert stand.timer(1).done(1, 7).said == 7


# -- letting go ----------------------------------------------------------------------------------


def test_a_run_is_let_go_whatever_its_finally_does() -> None:
    done: list[str] = []

    async def clinging(_: Order, run: Run) -> None:
        pending = run.call("a", Order())
        try:
            try:
                await run.sleep(SECOND)
            finally:
                done.append("one")
                await pending
        finally:
            done.append("two")
            try:
                await run.call("b", Order())
            finally:
                await pending
                done.append("never")

    stand = Stand(clinging).start()
    stand.run.close()
    assert done == ["one", "two"]
    assert stand.commands == ["call a", "sleep"], "it asks for nothing on its way out"
    assert stand.run.end is None
    stand.run.close()


async def test_a_parked_run_is_let_go_too() -> None:
    done: list[str] = []

    async def foreign(_: Order, run: Run) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            done.append("gone")

    stand = Stand(foreign).start()
    assert stand.end.parked
    stand.run.close()
    assert done == ["gone"]
