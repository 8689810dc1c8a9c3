"""Rules of runs and waits on made-up facts: each fault by its name, and silence without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streams.audit.wire import Kind
from tests.unit.audit.made_up import HOUR, JOIN, NOW, WORK, World, child, job

R = job(50)
Damage = Callable[[World], object]


def _ran(damage: Damage) -> Damage:
    def whole(w: World) -> None:
        w.ran(R)
        damage(w)

    return whole


def _waiting(*waits: tuple[str, bool], calls: int = 0) -> Damage:
    def begun(w: World) -> None:
        w.begin(R)
        w.move(R, 2, calls, waits)

    return begun


def _then(*steps: Damage) -> Damage:
    def all_of_them(w: World) -> None:
        for step in steps:
            step(w)

    return all_of_them


def _drop_first(n: int) -> Damage:
    def dropped(w: World) -> None:
        # A copy that is none stands in its place: offsets stay.
        record = next(r for r in w.records if r[3] == child(R, n))
        record[3], record[5] = job(99), int(Kind.TOMBSTONE)
        w.branches.remove(next(b for b in w.branches if b[3] == child(R, n)))

    return dropped


def _untold(w: World) -> None:
    _waiting(calls=2)(w)
    w.end(R, 1)
    w.arrivals.pop()
    w.events.pop()


def _ended_twice(w: World) -> None:
    w.ran(R)
    w.signal(R)
    w.move(R, 5, end="cancelled")


def _same_end_twice(w: World) -> None:
    w.ran(R)
    last = w.states[-1]
    copy = [*last[:2], len(w.states), *last[3:]]
    w.states.append(copy)
    w.history.append(copy[:14])
    w.run_steps.append([*copy[:7], *w.run_steps[-1][7:]])


def _another_run(w: World) -> None:
    w.begin(R)
    w.move(R, 2, end="done")
    w.run_steps[-1][7] = WORK


def _without_cause(w: World) -> None:
    w.ran(R)
    w.states[-1][9] = w.history[-1][9] = 999


def _shared_cause(w: World) -> None:
    w.begin(R)
    w.move(R, 2, 1)
    w.move(R, 3, 1)
    w.events[-1][9] = 2


def _step_gone(w: World) -> None:
    w.ran(R)
    third = next(s for s in w.states if s[3] == R and s[4] == 3)
    w.states.remove(third)
    w.history.remove(third[:14])
    w.run_steps = [r for r in w.run_steps if not (r[3] == R and r[4] == 3)]


def _last_step_gone(w: World) -> None:
    """The journal led to a step that the log does not have."""
    _waiting(("approval", False), calls=1)(w)
    w.signal(R)
    w.events[-1][9] = 3


def _event_elsewhere(w: World) -> None:
    w.events[-1][8] = 0


FAULTS = [
    ("run_lost", R, lambda w: w.begin(R)),
    ("run_lost", R, _then(_waiting(calls=2), lambda w: [w.end(R, 0), w.end(R, 1)])),
    ("run_lost", R, _then(_waiting(("", True)), lambda w: w.fire(R))),
    ("run_lost", R, _then(_waiting(("approval", False)), lambda w: w.signal(R))),
    ("run_lost", R, _last_step_gone),
    ("branch_lost", child(R, 1), _then(_waiting(calls=2), _drop_first(1))),
    ("branch_lost", child(R, 1), _untold),
    ("run_doubled", R, _same_end_twice),
    ("run_without_start", R, _another_run),
    ("state_without_cause", R, _without_cause),
    ("state_without_cause", R, _shared_cause),
    ("gap", R, _step_gone),
    ("timer_missing", R, _then(_waiting(("", True)), lambda w: w.timers.clear())),
    ("run_differs", R, _ran(lambda w: w.runs[R].__setitem__(2, "open"))),
    ("run_differs", R, _ran(lambda w: [w.runs.clear(), w.events.clear()])),
    ("run_differs", R, _ran(lambda w: w.events.pop())),
    ("run_differs", R, _ran(lambda w: w.events.pop(1))),
    ("run_differs", R, _ran(lambda w: w.events[1].__setitem__(5, b"?"))),
    ("run_differs", R, _ran(_event_elsewhere)),
    ("run_differs", job(60), lambda w: w.runs.setdefault(job(60), [job(60), 1, "open", NOW])),
]


@pytest.mark.parametrize(("rule", "whom", "damage"), FAULTS)
def test_one_damage_raises_one_name(rule: str, whom: bytes | None, damage: Damage) -> None:
    world = World()
    damage(world)
    assert world.judged() == {(rule, whom)}


def test_a_run_that_ended_and_went_on_is_told_twice() -> None:
    world = World()
    _ended_twice(world)
    assert ("run_doubled", R) in world.judged()


def test_a_timer_that_did_not_come_back_is_overdue() -> None:
    world = World()
    _waiting(("approval", True))(world)
    world.timers[0][5] = NOW - HOUR
    assert world.judged() == {("timer_overdue", R)}
    world.fire(R)
    world.move(R, 3, end="done")
    assert world.judged() == set()


def _failed_and_redriven(w: World) -> None:
    _waiting(calls=1)(w)
    w.end(R, 0, "failed")
    w.move(R, 3, end="failed")
    place = w.record(JOIN, R, 3, Kind.REDRIVE)[:3]
    w.events.append([R, 1, "redrive", "3", "", b"", *place, None, w.at_ms])
    w.move(R, 4, 1)
    w.end(R, 1)
    w.move(R, 5, end="done")


WELL: dict[str, Damage] = {
    "a run that went the whole way": lambda w: w.ran(R),
    "a run that waits for one of two calls": _then(_waiting(calls=2), lambda w: w.end(R, 0)),
    "one that waits for a timer": _waiting(("", True)),
    "one that waits for its second signal": _then(
        _waiting(("approval", False), ("approval", False)), lambda w: w.signal(R)
    ),
    "one that was sent another signal": _then(
        _waiting(("approval", False)), lambda w: w.signal(R, "refusal")
    ),
    "one whose timer came, and whose call has not": _then(
        _waiting(("", True), calls=1), lambda w: w.fire(R)
    ),
    "one that failed and was redriven": _failed_and_redriven,
    "a signal to a job that never was": lambda w: [
        w.signal(job(70)),
        w.events[-1].__setitem__(1, 0),
    ],
}


@pytest.mark.parametrize("what", WELL)
def test_what_is_well_raises_nothing(what: str) -> None:
    world = World()
    WELL[what](world)
    assert world.judged() == set()


def test_a_run_whose_steps_only_the_history_has_raises_nothing() -> None:
    world = World()
    world.ran(R)
    world.states = [s for s in world.states if s[3] != R or s[4] == 4]
    world.run_steps = world.run_steps[-1:]
    assert world.judged(compacted_ms=NOW) == set()


def test_a_child_that_starts_elsewhere_is_an_orphan() -> None:
    world = World()
    world.ran(R)
    row = world.record(WORK, child(R, 7), 0, Kind.BRANCH)
    world.branches.append([*row[:4], R, 7, 2, world.at_ms])
    world.finished.append((WORK, 0, row[2], row[2] + 1))
    assert ("branch_orphan", child(R, 7)) in world.judged()
