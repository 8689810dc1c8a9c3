"""What new events lead to: steps, ends, and runs that are brought back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ConfigDict

from schemas.state import Status
from streams import BadRecord, Emit, Reject, Run, Signal
from streams.joins.wire import read
from streams.orchestration.declare import Orchestration
from streams.orchestration.execution import Event, Execution
from streams.orchestration.journal import Happened, Journal, Player, RunTurn, error_of, turns
from streams.orchestration.wire import Beginning, encode_beginning, signal_headers
from tests.unit.orchestration.shop import Order

PARENT = "cd" * 16
Function = Callable[[Any, Run], Coroutine[Any, Any, Any]]


def encode(model: BaseModel) -> tuple[str, bytes]:
    if isinstance(model, Order) and model.amount > 1000:
        raise BadRecord("The payload has 2,000,000 bytes.")
    return type(model).__name__, model.model_dump_json().encode()


def opened(stage: str = "refund", signal: str | None = None, value: bytes = b"{}") -> Journal:
    return Journal(
        parent=PARENT,
        seq=4,
        stage=stage,
        input=value,
        signal=signal,
        timeout_ms=None if signal is None else 1000,
        first_child=2,
        born_us=1,
        keys_of=None,
        shielded=None,
        step=4,
        calls=0,
        seen=0,
        status="open",
    )


class Book:
    """A journal, and the releases of its orchestration that play it."""

    def __init__(self, function: Function | None = None, journal: Journal | None = None) -> None:
        self.journal = journal or opened()
        self.release(function)

    def release(self, function: Function | None) -> None:
        known = {} if function is None else {"refund": Orchestration(function, Order, ("a", "b"))}
        self._player = Player("shop", known, encode)

    def tell(self, *events: tuple[str, object, bytes]) -> list[RunTurn]:
        """One batch."""
        places = set()
        for kind, ref, value in events:
            n = len(self.journal.events) + 1
            detail = {"call": "done", "signal": "go"}.get(kind, "")
            event = Event(kind, f"{ref}", detail, value, n * 1_000_000)
            self.journal.events.append(Happened(n, event, (0, n)))
            places.add((0, n))
        self._player.play(self.journal)
        return turns(self.journal, places)


START = ("start", "", b"")


def signal(n: int) -> tuple[str, object, bytes]:
    return "signal", f"id {n}", Signal("go", n, "ann", datetime(2026, 1, 1, tzinfo=UTC)).to_json()


def done(child: int) -> tuple[str, object, bytes]:
    return "call", child, b"null"


def redrive(step: int) -> tuple[str, object, bytes]:
    return "redrive", step, b""


async def one_by_one(_: Order, run: Run) -> Emit:
    await run.call("a", Order(n=1))
    await run.signal("go")
    await run.call("b", Order(n=2))
    return Emit("done", Order(n=3))


def test_each_step_has_what_its_record_led_to() -> None:
    book = Book(one_by_one)
    first = book.tell(START, signal(1))
    (began,) = first
    assert (began.place, began.seq, began.run, began.children) == ((0, 1), 5, 4, 3)
    assert [(a.name, a.child, a.value) for a in began.asked] == [("a", 2, b'{"n":1,"amount":10}')]
    assert book.journal.waits == ["call a (/2)"]
    (both,) = book.tell(done(2))
    assert [(a.kind, a.child) for a in both.asked] == [("signal", None), ("call", 3)]
    assert (both.seq, both.children, both.waits) == (6, 4, ["signal go"])
    (last,) = book.tell(done(3))
    assert last.end is not None
    assert (last.end.status, last.end.to, last.end.ce_type) == (Status.RUNNING, "done", "Order")
    assert book.journal.status == "ended"
    assert book.tell(("timer", 1, b"")) == []
    assert turns(book.journal, {(0, 1)}) == first, "a record that comes again has its turn again"


def test_a_payload_that_is_too_large_fails_the_run_once() -> None:
    async def large(_: Order, run: Run) -> None:
        await run.call("a", Order(n=1))
        run.call("b", Order(amount=9999))
        await run.signal("go")
        await run.signal("go")

    book = Book(large)
    book.tell(START)
    (failed,) = book.tell(done(2), signal(1), signal(2))
    assert failed.end is not None
    assert (failed.seq, failed.asked) == (6, [])
    assert error_of(failed.end).message == (
        "Orchestration refund: The payload has 2,000,000 bytes."
    )
    assert (book.journal.status, book.journal.waits, book.journal.step) == ("failed", [], 6)


def test_a_run_that_failed_goes_on_when_it_is_redriven_with_what_came_meanwhile() -> None:
    async def broken(_: Order, run: Run) -> None:
        await run.call("a", Order())
        raise ValueError("a bug")

    book = Book(broken)
    book.tell(START)
    (failed,) = book.tell(done(2))
    assert book.tell(signal(1)) == [], "nothing is run while it is failed"
    (again,) = book.tell(redrive(failed.seq))
    assert again.end is not None
    assert (again.seq, again.end.status) == (failed.seq + 1, Status.FAILED)
    book.release(one_by_one)
    assert book.tell(redrive(failed.seq)) == [], "that letter was redriven before"
    (mended,) = book.tell(redrive(again.seq))
    assert [str(a.kind) for a in mended.asked] == ["signal", "call"]
    assert mended.end is None
    (last,) = book.tell(done(3))
    assert last.end is not None
    assert last.end.to == "done"


def test_changed_code_parks_a_run_and_the_old_code_goes_on() -> None:
    async def changed(_: Order, run: Run) -> None:
        await run.call("b", Order())

    book = Book(one_by_one)
    book.tell(START)
    book.release(changed)
    (parked,) = book.tell(done(2))
    assert parked.end is not None
    assert (parked.end.status, parked.asked) == (Status.WAITING, [])
    error = error_of(parked.end)
    assert error.kind == "code_changed"
    assert f"of run {PARENT}: its command 0 was 'call a', and this code asks for 'call b'" in (
        error.message
    )
    assert book.journal.status == "parked"
    book.tell(signal(1))
    (still,) = book.tell(redrive(parked.seq))
    assert still.end is not None
    book.release(one_by_one)
    (back,) = book.tell(redrive(still.seq))
    assert [(a.kind, a.child) for a in back.asked] == [("signal", None), ("call", 3)]
    assert [a.n for a in book.journal.asked] == [0, 1, 2]


def test_a_release_without_the_orchestration_and_one_with_another_input_park_it() -> None:
    book = Book(None)
    (parked,) = book.tell(START)
    assert parked.end is not None
    assert error_of(parked.end).message == (
        "This program's flow has no orchestration refund. Run a release that has it, then redrive."
    )
    book.release(one_by_one)
    (began,) = book.tell(redrive(parked.seq))
    assert [a.name for a in began.asked] == ["a"]
    bad = Book(one_by_one, opened(value=b'{"n":"x"}'))
    (parked,) = bad.tell(START)
    assert parked.end is not None
    assert "The input of the run is no Order: n: Input should be" in error_of(parked.end).message


def test_a_wait_is_a_run_whose_end_is_its_stage_with_the_signal() -> None:
    book = Book(journal=opened("ask", "go", b'{"n":7}'))
    (waits,) = book.tell(START)
    assert [(a.kind, a.name, a.due_us) for a in waits.asked] == [("signal", "go", 2_000_000)]
    (went,) = book.tell(signal(5))
    assert went.end is not None
    assert (went.end.to, went.resumed) == ("ask", b'{"n":7}')
    assert Signal.from_json(went.end.value or b"").value == 5
    late = Book(journal=opened("ask", "go"))
    late.tell(START)
    (went,) = late.tell(("timer", 0, b""))
    assert went.end is not None
    assert Signal.from_json(went.end.value or b"").timed_out


def test_what_a_run_leaves_is_for_the_next_of_its_job_whatever_batch_it_came_in() -> None:
    async def one(_: Order, run: Run) -> Reject | None:
        await run.signal("go")
        return None

    for batches in ([[START, signal(1), signal(2)]], [[START, signal(1)]]):
        book = Book(one)
        for batch in batches:
            book.tell(*batch)
        left = [orjson.loads(each.event.value)["value"] for each in book.journal.left]
        assert left == [2] * (len(batches[0]) - 2)
        assert [each.event.kind for each in book.journal.events] == ["start", "signal"]


def test_a_strict_model_reads_a_result_and_a_signal() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime
        tags: tuple[str, ...]

    given = Strict(at=datetime(2026, 1, 1, tzinfo=UTC), tags=("x",))
    value = orjson.loads(given.model_dump_json())
    assert Signal("go", value).parse(Strict) == given

    async def reads(_: Order, run: Run) -> Strict:
        return await run.call("a", Order(), returns=Strict)

    book = Book(reads)
    book.tell(START)
    (ended,) = book.tell(("call", 2, given.model_dump_json().encode()))
    assert ended.end is not None
    assert ended.end.ce_type == "Strict"


def test_what_postgres_cannot_keep_as_text_is_refused_before_it() -> None:
    key = PARENT.encode()
    for sent, name in (("a\0", "go"), ("a", "g\0o")):
        value = Signal(name).to_json()
        headers = signal_headers("shop", PARENT, sent, "2026-01-01")
        found = read(key, headers, value, b"shop")
        assert found == "it is no signal: its id and its name have no NUL"
    began = encode_beginning(Beginning(stage="ask", first_child=0, signal="go"), b"{}")
    headers = [("handoff_hop", b"1;5;shop"), ("handoff_run", b"ask")]
    assert not isinstance(read(key, headers, began, b"shop"), str)
    for part in (b'"g\\u0000o"', b'"go","timeoutMs":1e18'):
        found = read(key, headers, began.replace(b'"go"', part), b"shop")
        assert isinstance(found, str)

    async def nul(_: Order, run: Run) -> None:
        await run.signal("a\0")

    (failed,) = Book(nul).tell(START)
    assert failed.end is not None
    assert "a name has no NUL" in error_of(failed.end).message


@pytest.mark.parametrize(("first", "depth"), [(100_000, 0), (99_999, 8)])
def test_a_job_has_no_more_children_than_ids_can_name(first: int, depth: int) -> None:
    journal = opened()
    journal.first_child, journal.parent = first, PARENT + "/1" * depth

    async def calling(_: Order, run: Run) -> None:
        await run.call("a", Order())

    (failed,) = Book(calling, journal).tell(START)
    assert failed.end is not None
    assert "would have more than 100,000 children" in error_of(failed.end).message


@pytest.mark.parametrize("batches", [1, 2])
def test_what_is_let_go_is_freed_at_once(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look for circles once a minute; a burst of runs must not wait for that."""
    freed: list[int] = []
    began: list[int] = []
    original = Execution.__init__

    def init(self: Execution, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        began.append(1)
        weakref.finalize(self, freed.append, 1)

    monkeypatch.setattr(Execution, "__init__", init)

    async def pair(_: Order, run: Run) -> None:
        await run.gather(run.call("a", Order()), run.sleep(timedelta(seconds=1)))

    gc.collect()
    gc.disable()
    try:
        for its in (Book(one_by_one), Book(pair), Book(journal=opened("ask", "go"))):
            its.tell(START)
            for event in (done(2), signal(1))[: batches - 1]:
                its.tell(event)
        assert len(began) == 3 * batches
        assert len(freed) == len(began)
    finally:
        gc.enable()


def test_a_run_that_is_brought_back_and_waits_again_has_made_a_step() -> None:
    async def hasty(_: Order, run: Run) -> Emit:
        a, b = run.call("a", Order(n=1)), run.call("b", Order(n=2))
        await run.first_of(a, b)
        raise ValueError("too hasty")

    async def patient(_: Order, run: Run) -> Emit:
        a, b = run.call("a", Order(n=1)), run.call("b", Order(n=2))
        await run.gather(a, b)
        return Emit("done", Order(n=3))

    book = Book(hasty)
    book.tell(START)
    (failed,) = book.tell(done(2))
    book.release(patient)
    back, over = book.tell(redrive(failed.seq), done(3))
    assert (back.seq, back.end, back.asked) == (failed.seq + 1, None, [])
    assert over.end is not None
    assert (over.seq, over.end.to) == (back.seq + 1, "done")
