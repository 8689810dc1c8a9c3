"""Each rule on made-up facts: a whole world raises nothing, one damage raises one name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streams.audit.rules import _STEPS, HORIZON, RULES
from streams.audit.wire import Kind
from tests.unit.audit.made_up import (
    DONE,
    EXPIRED,
    HOUR,
    NOW,
    STATE,
    TAKE,
    TAKE_DLQ,
    TIMERS,
    WORK,
    World,
    job,
)

J = job(1)
NEW = job(77)
Damage = Callable[[World], None]


def _drop_record(topic: int) -> Damage:
    return lambda w: w.records.remove(next(r for r in w.records if r[0] == topic and r[3] == J))


def _copy_record(w: World) -> None:
    w.record(DONE, J, 2)


def _strange_record(w: World) -> None:
    w.record(DONE, NEW, 2)


def _wrong_target(w: World) -> None:
    w.record(DONE, J, 1)


def _consumed_only(w: World) -> None:
    w.record(TAKE, NEW, 0, Kind.SUBMISSION)


def _finished_past_the_head(w: World) -> None:
    at = w.record(TAKE, NEW, 0, Kind.SUBMISSION)[2]
    w.parts[TAKE]["head"] = at - 1
    w.finished.append((TAKE, 0, at, at + 1))


def _waiting_too_long(w: World) -> None:
    w.record(TAKE, NEW, 0, Kind.SUBMISSION, ms=NOW - 3 * HOUR)
    w.parts[TAKE]["head"] = 3


def _state_of(w: World, seq: int) -> list[object]:
    return next(s for s in w.states if s[3] == J and s[4] == seq)


def _step_twice(w: World) -> None:
    w.states.append([STATE, 0, len(w.states), *_state_of(w, 1)[3:]])
    w.history.append(w.states[-1][:14])


def _forged(consumed: int | None, at: int) -> Damage:
    def damage(w: World) -> None:
        row = w.step(J, 3, WORK, DONE)
        row[7], row[9] = consumed, at
        w.history[-1] = row[:14]

    return damage


def _after_done(w: World) -> None:
    w.record(WORK, J, 2, Kind.REDRIVE)
    w.step(J, 3, WORK, None, "done")


def _after_failed(kind: Kind) -> Damage:
    def damage(w: World) -> None:
        w.fail(NEW)
        w.record(TAKE, NEW, 1, kind)
        w.step(NEW, 2, TAKE, None, "done")

    return damage


def _failed_without_letter(w: World) -> None:
    w.fail(NEW)
    w.letters.clear()


def _letter_twice(w: World) -> None:
    w.fail(NEW)
    w.letters.append([TAKE_DLQ, 0, 1, *w.letters[0][3:]])


def _letter_of_nothing(w: World) -> None:
    w.letters.append([TAKE_DLQ, 0, 0, J, 1, NOW])


def _waits_for_nothing(w: World) -> None:
    w.record(TAKE, NEW, 0, Kind.SUBMISSION)
    w.step(NEW, 1, TAKE, None, "waiting")


def _timer(due_ms: int) -> Damage:
    def damage(w: World) -> None:
        _waits_for_nothing(w)
        w.timers.append([TIMERS, 0, 0, NEW, 1, due_ms, "run.take"])

    return damage


def _came_back(w: World) -> None:
    _timer(NOW - HOUR)(w)
    w.record(TAKE, NEW, 1, Kind.TIMER)
    w.parts[TAKE]["head"] = 4


def _row(n: int, value: object) -> Damage:
    return lambda w: w.rows[J].__setitem__(n, value)


def _removed_unread(w: World) -> None:
    w.parts[TAKE].update(head=0, low=2, start=2)
    w.records = [r for r in w.records if r[0] != TAKE or r[2] >= 2]
    w.states = [s for s in w.states if s[3] not in (job(0), J)]
    w.records = [r for r in w.records if r[3] not in (job(0), J)]
    w.history = [s[:14] for s in w.states]
    w.rows = {k: v for k, v in w.rows.items() if k not in (job(0), J)}


def _effect(of: bytes = J, name: str = "work/mark", **fields: object) -> Damage:
    def damage(w: World) -> None:
        w.effect(of, name, **fields)

    return damage


def _targets(times: int, known: bool = True) -> Damage:
    def damage(w: World) -> None:
        other = w.effect(job(0))[0]
        key = w.effect(J)[0] if known else "x:work:0:mark"
        w.targets += [(other, "work/mark")] + [(key, "work/mark")] * times

    return damage


def _not_projected(w: World) -> None:
    w.projected = False
    w.rows.clear()
    w.history.clear()
    for state in w.states:
        state[12] = NOW - 3 * HOUR


#: Rule, whom it names, and the damage.
FAULTS = [
    ("hand_off_lost", J, _drop_record(DONE)),
    ("hand_off_doubled", J, _copy_record),
    ("hand_off_without_cause", NEW, _strange_record),
    ("hand_off_without_cause", J, _wrong_target),
    ("record_lost", NEW, _consumed_only),
    ("record_lost", NEW, _finished_past_the_head),
    ("stuck", NEW, _waiting_too_long),
    ("step_doubled", J, _step_twice),
    ("state_without_cause", J, _forged(WORK, 99)),
    ("state_without_cause", J, _forged(WORK, 0)),
    ("state_without_cause", J, _forged(TAKE, 1)),
    ("state_without_cause", J, _forged(None, 1)),
    ("state_without_cause", J, _forged(0, 1)),
    ("step_after_end", J, _after_done),
    ("step_after_end", NEW, _after_failed(Kind.TIMER)),
    ("letter_missing", NEW, _failed_without_letter),
    ("letter_doubled", NEW, _letter_twice),
    ("letter_without_state", J, _letter_of_nothing),
    ("timer_missing", NEW, _waits_for_nothing),
    ("timer_overdue", NEW, _timer(NOW - HOUR)),
    ("projection_missing", J, lambda w: w.rows.pop(J)),
    ("projection_extra", NEW, lambda w: w.rows.update({NEW: [NEW, 1, TAKE, "done", b"", None]})),
    ("projection_differs", J, _row(1, 1)),
    ("projection_differs", J, _row(3, "failed")),
    ("projection_differs", J, _row(4, b"x")),
    ("projection_differs", J, _row(5, "parent")),
    ("projection_behind", None, _not_projected),
    ("history_missing", J, lambda w: w.history.remove(_state_of(w, 2)[:14])),
    ("history_differs", J, lambda w: w.history[2].__setitem__(11, b"x")),
    ("history_extra", NEW, lambda w: w.history.append([STATE, 0, 50, NEW, *w.history[0][4:]])),
    ("removed_unread", None, _removed_unread),
    ("effect_in_doubt", J, _effect(status="in_doubt")),
    ("effect_in_doubt", J, _effect(status="claimed", idempotent=0)),
    ("effect_unsettled", J, _effect(status="claimed")),
    ("effect_repeated", J, _effect(idempotent=0, calls=2, unknown=1)),
    ("effect_doubled", J, _effect(twice=1)),
    ("effect_orphaned", NEW, _effect(NEW)),
    ("target_doubled", J, _targets(2)),
    ("target_missing", J, _targets(0)),
    ("target_unknown", None, _targets(1, known=False)),
]


@pytest.mark.parametrize(("rule", "whom", "damage"), FAULTS)
def test_one_damage_raises_one_name(rule: str, whom: bytes | None, damage: Damage) -> None:
    world = World()
    damage(world)
    assert world.judged() == {(rule, whom)}


#: What looks odd and is well.
WELL = {
    "nothing at all": lambda _: None,
    "a failed job": lambda w: w.fail(NEW),
    "a redriven job": _after_failed(Kind.REDRIVE),
    "a timer to come": _timer(NOW + HOUR),
    "a timer that came back": _came_back,
    "a tombstone": lambda w: w.record(TAKE, NEW, 0, Kind.TOMBSTONE),
    "two redriven copies": lambda w: [
        _after_failed(Kind.REDRIVE)(w),
        w.record(TAKE, NEW, 1, Kind.REDRIVE),
    ],
    "a claim that is alive": _effect(status="claimed", idempotent=0, over=0),
    "called again after a no": _effect(idempotent=0, calls=2, unknown=0),
    "effects of a target without a record": lambda w: [_targets(1)(w), w.effect(job(2), "take/x")],
}


@pytest.mark.parametrize("what", WELL)
def test_what_only_looks_odd_raises_nothing(what: str) -> None:
    world = World()
    WELL[what](world)
    assert world.judged() == set()


def test_what_is_younger_than_stuck_after_is_in_flight() -> None:
    world = World()
    world.record(TAKE, NEW, 0, Kind.SUBMISSION)
    world.parts[TAKE]["head"] = 3
    assert world.judged() == set()
    assert world.judged(stuck_ms=HOUR // 2) == {("stuck", NEW)}


def test_late_states_explain_and_owe_nothing() -> None:
    world = World()
    world.record(TAKE, NEW, 0, Kind.SUBMISSION)
    row = world.step(NEW, 1, TAKE, WORK)
    row[15] = 1
    assert world.judged() == set()
    row[15] = 0
    assert world.judged() == {("hand_off_lost", NEW)}


def _old_world() -> World:
    return World(at_ms=EXPIRED - HOUR)


def test_a_hand_off_older_than_its_retention_is_beyond_the_horizon_if_anything_was_removed() -> (
    None
):
    world = _old_world()
    _drop_record(DONE)(world)
    assert world.judged() == {("hand_off_lost", J)}
    world.parts[DONE]["start"] = world.parts[DONE]["low"] = 1
    assert world.judged() == set()
    assert world.horizon == {"hand_offs_gone": 1}


def test_consumed_records_before_the_start_are_beyond_it_and_early_removal_is_told() -> None:
    world = _old_world()
    world.parts[WORK].update(low=2, start=2)
    world.records = [r for r in world.records if r[0] != WORK or r[2] >= 2]
    assert world.judged() == set()
    assert world.horizon == {"causes_gone": 2, "hand_offs_gone": 2}
    world = World()
    world.parts[WORK].update(low=2, start=2)
    world.records = [r for r in world.records if r[0] != WORK or r[2] >= 2]
    assert world.judged() == {("topic_truncated", None)}


def test_a_missing_step_is_a_gap_if_it_is_young_and_beyond_the_horizon_if_it_is_old() -> None:
    for world, found, horizon in (
        (World(), {("gap", J)}, 0),
        (_old_world(), set(), 1),
    ):
        lost = _state_of(world, 1)
        world.states.remove(lost)
        world.history.remove(lost[:14])
        world.records = [r for r in world.records if not (r[0] in (TAKE, WORK) and r[3] == J)]
        world.parts[WORK].update(low=2, start=2)
        world.parts[TAKE].update(low=2, start=2)
        told = {x for x in world.judged() if x[0] != "topic_truncated"}
        assert told == found
        assert world.horizon.get("steps_unknown", 0) == horizon


def test_compacted_steps_are_taken_from_the_history() -> None:
    world = _old_world()
    world.states = [s for s in world.states if s[4] == 2]
    assert world.judged() == set()
    assert world.horizon == {}


def test_an_old_record_whose_writer_is_gone_everywhere_is_beyond_the_horizon() -> None:
    world = _old_world()
    world.record(DONE, NEW, 2)
    assert world.judged() == set()
    assert world.horizon == {"writers_unknown": 1}


def test_a_topic_that_was_deleted_is_beyond_the_horizon() -> None:
    world = World()
    world.gone.append((9, "run.gone", "gone", "run", "gone", -1))
    row = world.step(J, 3, WORK, 9)
    row[5], row[7] = 9, 0
    world.history[-1] = row[:14]
    world.rows[J][2] = 9
    world.states[-1][6] = world.rows[J][3] = world.history[-1][6] = "running"
    assert world.judged() == {("step_after_end", J)}
    assert world.horizon == {"causes_gone": 1, "hand_offs_gone": 1}


def test_since_asks_for_nothing_older() -> None:
    world = World()
    _drop_record(DONE)(world)
    _strange_record(world)
    world.rows.pop(job(2))
    assert len(world.judged()) == 3
    assert world.judged(since_ms=NOW - HOUR // 2) == set()


def test_every_rule_and_every_horizon_is_declared() -> None:
    raised = {rule for rule, _, _ in FAULTS} | {"gap", "topic_truncated"}
    # Those of reading, not of SQL: integration tests raise them.
    assert {r.name for r in RULES} - raised == {"unreadable_state", "position_unreadable"}
    assert set(HORIZON) <= set(_STEPS)
