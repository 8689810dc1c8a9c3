"""Results that come in any order give the same commands and the same end.

Method: made-up programs over a world that answers each call by what it was handed; what happens
next is drawn from what could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streams import Signal
from streams.orchestration.execution import Event, Execution, Known
from streams.orchestration.run import RunId
from tests.support.programs import MACHINE, SIGNALS, Program, ended, programs

RUN = RunId(f"{1:032x}", 1, "flow", "machine")
Pick = Callable[[int], int]
Told = tuple[list[tuple[Any, ...]], object]


def execution(program: Program, known: Sequence[Known] = ()) -> Execution:
    return Execution(MACHINE.function, program, RUN, calls=MACHINE.calls, known=known)


def told(run: Execution) -> Told:
    """Without the time, which is that of what came."""
    return [(c.n, c.kind, c.name, c.child, c.model) for c in run.commands], run.end


def live(program: Program, dice: int, pick: Pick) -> tuple[Told, list[Event]]:
    """Let what could happen happen, in the order that `pick` gives it, until nothing is left."""
    run, journal, asked, sent = execution(program), [], 0, 0
    coming = [Event("start", "", "", b"", 0)]
    for at_us in count(1):
        if not coming:
            break
        event = coming.pop(pick(len(coming)))._replace(at_us=at_us)
        journal.append(event)
        run.feed(event)
        for each in run.commands[asked:]:
            match each.kind:
                case "call":
                    assert each.model is not None
                    status, value = ended(each.name, each.model.model_dump_json().encode(), dice)
                    coming.append(Event("call", str(each.child), status.value, value, 0))
                case "sleep":
                    coming.append(Event("timer", str(each.n), "", b"", 0))
                case _:
                    sent += 1
                    signal = Signal(each.name, each.name).to_json()
                    coming.append(Event("signal", str(sent), each.name, signal, 0))
        asked = len(run.commands)
    run.close()
    return told(run), journal


@given(programs(), st.integers(0, 99), st.data())
@settings(max_examples=50, deadline=None)
def test_any_order_gives_the_same_commands_and_the_same_end(
    program: Program, dice: int, data: st.DataObject
) -> None:
    wanted, _ = live(program, dice, lambda _: 0)
    got, _ = live(program, dice, lambda n: data.draw(st.integers(0, n - 1)))
    assert got == wanted
    assert wanted[1] is not None, "all that it waited for has come"


@given(programs(), st.integers(0, 99), st.lists(st.sampled_from(SIGNALS), max_size=4), st.data())
@settings(max_examples=40, deadline=None)
def test_a_journal_gives_the_same_from_any_of_its_events_on(
    program: Program, dice: int, early: list[str], data: st.DataObject
) -> None:
    """Each event is seen by a worker that has run the function over those before it."""
    _, journal = live(program, dice, lambda n: data.draw(st.integers(0, n - 1)))
    signals = [
        Event("signal", f"early {n}", name, Signal(name, n).to_json(), 0)
        for n, name in enumerate(early)
    ]
    at = data.draw(st.integers(0, len(journal)))
    cancel = [Event("cancel", "", "", b'{"by":"ann"}', 0)] if data.draw(st.booleans()) else []
    journal = [*signals, *journal[:at], *cancel, *journal[at:]]
    whole = execution(program)
    steps = []
    for event in journal:
        whole.feed(event)
        steps.append(told(whole))
    for n, wanted in enumerate(steps, 1):
        before = steps[n - 2][0] if n > 1 else []
        again = execution(program, [Known(kind, name) for _, kind, name, *_ in before])
        for event in journal[: n - 1]:
            again.feed(event)
        again.check()
        again.feed(journal[n - 1])
        assert told(again) == wanted
        again.close()
    whole.close()
