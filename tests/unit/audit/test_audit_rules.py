"""Each rule on made-up facts: a whole world raises nothing, one damage raises one name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streams.audit.rules import _STEPS, HORIZON, RULES
from streams.audit.wire import Kind
from tests.unit.audit.made_up import (
    _ROLES,
    DONE,
    EXPIRED,
    HOUR,
    JOIN,
    JOIN_DLQ,
    NOW,
    STATE,
    TAKE,
    TAKE_DLQ,
    TIMERS,
    WORK,
    World,
    child,
    job,
)
from tests.unit.audit.test_audit_run_rules import FAULTS as RUN_FAULTS

J = job(1)
NEW = job(77)
#: The second child of NEW.
CHILD = child(NEW, 1)
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


def _woken_for_nothing(w: World) -> None:
    _timer(NOW + HOUR)(w)
    w.record(TAKE, NEW, 1, Kind.CANCEL)


def _cancelled(w: World) -> None:
    _woken_for_nothing(w)
    w.step(NEW, 2, TAKE, None, "cancelled")


def _cancelled_fork(w: World) -> None:
    """One branch came before its parent was cancelled, one after; the wake was written twice."""
    w.fork(NEW)
    w.end(NEW, 1)
    w.record(JOIN, NEW, 1, Kind.CANCEL)
    w.step(NEW, 2, JOIN, None, "cancelled")
    w.joins[NEW][5] = "cancelled"
    w.record(JOIN, NEW, 1, Kind.CANCEL)
    w.end(NEW, 0, "cancelled")


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


def _forked(damage: Damage) -> Damage:
    def damaged(w: World) -> None:
        w.forked(NEW)
        damage(w)

    return damaged


def _all_came(rule: str, *ends: str) -> Damage:
    """All ends of a fork's children are consumed, and the job waits."""

    def damage(w: World) -> None:
        w.fork(NEW, rule=rule)
        for n, end in enumerate(ends):
            w.end(NEW, n, end)

    return damage


def _time_was_up(w: World) -> None:
    w.fork(NEW)
    w.expected[0][9] = NOW - HOUR
    w.timers.append([TIMERS, 0, 0, NEW, 1, NOW - HOUR, "run.join"])
    w.record(JOIN, NEW, 1, Kind.TIMER)


def _no_deadline(w: World) -> None:
    w.fork(NEW)
    w.expected[0][9] = NOW + HOUR


def _not_started(w: World) -> None:
    w.fork(NEW)
    w.branches.pop()
    w.records.pop()


def _expects_nothing(w: World) -> None:
    w.fork(NEW)
    w.records = [r for r in w.records if r[0] != JOIN]
    w.expected.clear()
    w.joins.clear()


def _not_told(w: World) -> None:
    w.fork(NEW)
    w.end(NEW, 1)
    w.arrivals.clear()
    w.kept.clear()
    w.parts[JOIN]["head"] = 1


def _started_twice(w: World) -> None:
    w.fork(NEW)
    w.branches.append([TAKE, 0, 3, CHILD, NEW, 1, 1, w.at_ms])


def _told_twice(w: World) -> None:
    w.arrivals.append([JOIN, 0, 3, *w.arrivals[0][3:]])


def _told_otherwise(w: World) -> None:
    w.fork(NEW)
    w.end(NEW, 1)
    w.ended.clear()
    w.states[-1][6] = w.rows[CHILD][3] = "running"
    w.history[-1] = w.states[-1][:14]


def _told_by_nobody(w: World) -> None:
    w.fork(NEW)
    w.arrivals.append([JOIN, 0, 1, CHILD, NEW, 1, 5, "done", b"", w.at_ms])
    w.kept.append([NEW, 1, 5, "done", b""])


def _forked_by_nobody(of: bytes, n: int) -> Damage:
    def damage(w: World) -> None:
        w.fork(NEW)
        row = w.record(WORK, child(of, n), 0, Kind.BRANCH)
        w.branches.append([*row[:4], of, n, 1, w.at_ms])

    return damage


def _joined_early(rule: str, *ends: str) -> Damage:
    def damage(w: World) -> None:
        _all_came(rule, *ends)(w)
        w.join(NEW)

    return damage


def _joined_again(w: World) -> None:
    w.step(NEW, 4, JOIN, None, "running")
    w.states[-2][6] = w.history[-2][6] = "running"


def _joined_twice(w: World) -> None:
    second = next(s for s in w.states if s[5] == JOIN)
    w.states.append([STATE, 0, len(w.states), *second[3:]])
    w.history.append(w.states[-1][:14])


def _handed_on_twice(w: World) -> None:
    w.record(WORK, NEW, 2)


def _joined_without_fork(w: World) -> None:
    row = w.step(NEW, 4, JOIN, None, "failed")
    w.states[-2][6] = w.history[-2][6] = "running"
    w.letters.append([JOIN_DLQ, 0, 0, NEW, 4, row[12]])


def _failed_join(w: World, *ends: str) -> None:
    _all_came("fail", *ends)(w)
    row = w.step(NEW, 2, JOIN, None, "failed")
    w.letters.append([JOIN_DLQ, 0, 0, NEW, 2, row[12]])
    w.joins[NEW][5:8] = ["failed", ends.count("done"), ends.count("failed")]


def _redriven(w: World) -> None:
    """The letter of its join, while a branch is still failed."""
    _failed_join(w, "done", "failed")
    w.record(JOIN, NEW, 2, Kind.REDRIVE)
    row = w.step(NEW, 3, JOIN, JOIN, "waiting")
    w.forks.append([*row[:6], WORK, 0, 2, row[12], 0])
    w.joins[NEW][5:8] = ["open", None, None]


def _mended(w: World) -> None:
    """The letter of the branch, too."""
    _redriven(w)
    w.record(WORK, CHILD, 1, Kind.REDRIVE)
    row = w.step(CHILD, 2, WORK, None, "done")
    w.ended.append([*row[:7], NEW, 1, row[12], 0])
    w.arrivals.append([JOIN, 0, 4, CHILD, NEW, 1, 2, "done", b"1", w.at_ms])
    w.kept[1][2:4] = [2, "done"]
    w.parts[JOIN]["head"] = 5


def _not_reopened(w: World) -> None:
    _failed_join(w, "done", "failed")
    w.record(JOIN, NEW, 2, Kind.REDRIVE)


def _set(n: int, value: object) -> Damage:
    return _forked(lambda w: w.joins[NEW].__setitem__(n, value))


def _set_of_nothing(ms: int) -> Damage:
    return lambda w: w.joins.update({J: [J, 1, WORK, 0, 1, "open", None, None, ms]})


def _unread_branch(w: World) -> None:
    w.fork(NEW)
    w.end(NEW, 1)
    w.kept.clear()
    w.parts[JOIN]["head"] = 1
    w.arrivals[0][9] = NOW - 3 * HOUR


#: Rule, whom it names, and the damage.
FAULTS = [
    ("branch_lost", CHILD, _not_started),
    ("branch_lost", CHILD, _not_told),
    ("branch_doubled", CHILD, _started_twice),
    ("branch_doubled", CHILD, _forked(_told_twice)),
    ("branch_orphan", CHILD, _told_otherwise),
    ("branch_orphan", CHILD, _told_by_nobody),
    ("branch_orphan", child(NEW, 2), _forked_by_nobody(NEW, 2)),
    ("branch_orphan", child(J, 0), _forked_by_nobody(J, 0)),
    ("hand_off_lost", NEW, _expects_nothing),
    ("join_lost", NEW, _all_came("wait", "done", "done")),
    ("join_lost", NEW, _all_came("errors", "done", "failed")),
    ("join_lost", NEW, _all_came("fail", "failed")),
    ("join_lost", NEW, _time_was_up),
    ("join_lost", NEW, _mended),
    ("record_lost", NEW, _not_reopened),
    ("timer_missing", NEW, _no_deadline),
    ("join_incomplete", NEW, _joined_early("wait", "done")),
    ("join_incomplete", NEW, _joined_early("wait", "done", "failed")),
    ("join_incomplete", NEW, _joined_early("errors", "failed")),
    ("join_incomplete", NEW, lambda w: _failed_join(w, "done")),
    ("join_doubled", NEW, _forked(_joined_again)),
    ("join_doubled", NEW, _forked(_joined_twice)),
    ("join_doubled", NEW, _forked(_handed_on_twice)),
    ("join_without_fork", NEW, _forked(_joined_without_fork)),
    ("join_differs", NEW, _forked(lambda w: w.joins.clear())),
    ("join_differs", NEW, _set(3, 1)),
    ("join_differs", NEW, _set(4, 3)),
    ("join_differs", NEW, _set(5, "open")),
    ("join_differs", NEW, _set(6, 1)),
    ("join_differs", CHILD, _forked(lambda w: w.kept.pop(0))),
    ("join_differs", CHILD, _forked(lambda w: w.kept[0].__setitem__(4, b"x"))),
    ("join_differs", J, _set_of_nothing(NOW)),
    ("stuck", NEW, _unread_branch),
    ("hand_off_lost", J, _drop_record(DONE)),
    ("hand_off_doubled", J, _copy_record),
    ("hand_off_without_cause", NEW, _strange_record),
    ("hand_off_without_cause", J, _wrong_target),
    ("record_lost", NEW, _consumed_only),
    ("record_lost", NEW, _finished_past_the_head),
    ("record_lost", NEW, _woken_for_nothing),
    ("step_after_end", NEW, _after_failed(Kind.CANCEL)),
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


def _ran_out_of_time(w: World) -> None:
    _time_was_up(w)
    w.expected[0][8] = "errors"
    w.join(NEW)


#: What looks odd and is well.
WELL = {
    "a fork that went the whole way": lambda w: w.forked(NEW),
    "a fork of nothing": lambda w: [w.fork(NEW, 0), w.join(NEW)],
    "a fork that waits": _all_came("wait", "done"),
    "a fork that waits for a redrive": _all_came("wait", "done", "failed"),
    "a join that failed": lambda w: _failed_join(w, "failed"),
    "a join that was reopened and waits": _redriven,
    "a join that was reopened and mended": lambda w: [_mended(w), w.join(NEW, 4)],
    "a join with errors": _joined_early("errors", "failed", "done"),
    "a join by its deadline": _ran_out_of_time,
    "a set of a topic that was made again": _set_of_nothing(NOW - 2 * HOUR),
    "nothing at all": lambda _: None,
    "a failed job": lambda w: w.fail(NEW),
    "a redriven job": _after_failed(Kind.REDRIVE),
    "a timer to come": _timer(NOW + HOUR),
    "a timer that came back": _came_back,
    "a cancelled wait": _cancelled,
    "a cancelled fork": _cancelled_fork,
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


def test_a_child_older_than_retention_is_beyond_the_horizon_if_anything_was_removed() -> None:
    for lost, topic in ((_not_started, WORK), (_not_told, JOIN)):
        world = _old_world()
        lost(world)
        assert world.judged(stuck_ms=NOW) == {("branch_lost", CHILD)}
        world.parts[topic]["start"] = world.parts[topic]["low"] = 1
        world.records = [r for r in world.records if r[0] != topic or r[2]]
        assert ("branch_lost", CHILD) not in world.judged(stuck_ms=NOW)
        assert world.horizon["branches_gone"] == 1


def test_a_join_topic_that_was_deleted_is_beyond_the_horizon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.forked(NEW)
    monkeypatch.setitem(_ROLES, JOIN, ("run.join", "gone", "run", "join"))
    world.records = [r for r in world.records if r[0] != JOIN]
    world.parts.pop(JOIN)
    for rows in (world.expected, world.arrivals, world.joins, world.kept):
        rows.clear()
    for row in (*world.states, *world.history):
        row[7] = 0 if row[7] == JOIN else row[7]
    assert world.judged() == set()
    assert world.horizon["branches_gone"] == 2


def test_an_old_child_whose_fork_is_gone_everywhere_raises_nothing() -> None:
    world = _old_world()
    _forked_by_nobody(J, 0)(world)
    assert world.judged(stuck_ms=NOW) == set()


def test_a_state_that_tells_of_too_many_children_is_judged_all_the_same() -> None:
    world = World()
    world.fork(NEW)
    world.forks[0][8] = 2**31 - 1
    lost = {who for rule, who in world.judged() if rule == "branch_lost"}
    assert lost == {child(NEW, n) for n in range(2, 10_000)}


def test_late_forks_and_ends_explain_and_owe_nothing() -> None:
    for damage, table, column in (
        (_not_started, "forks", 10),
        (_not_told, "ended", 10),
    ):
        world = World()
        damage(world)
        assert world.judged() == {("branch_lost", CHILD)}
        getattr(world, table)[-1][column] = 1
        assert world.judged() == set()


def test_a_join_by_a_branch_does_not_hide_that_a_step_is_missing() -> None:
    world = World()
    world.forked(NEW)
    forking = next(s for s in world.states if s[3] == NEW)
    world.states.remove(forking)
    world.history.remove(forking[:14])
    assert ("gap", NEW) in world.judged()


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
    world.gone.append((19, "run.gone", "gone", "run", "gone", -1))
    row = world.step(J, 3, WORK, 19)
    row[5], row[7] = 19, 0
    world.history[-1] = row[:14]
    world.rows[J][2] = 19
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
    raised = {rule for rule, _, _ in (*FAULTS, *RUN_FAULTS)} | {"gap", "topic_truncated"}
    # Those of reading, not of SQL: integration tests raise them.
    assert {r.name for r in RULES} - raised == {"unreadable_state", "position_unreadable"}
    assert set(HORIZON) <= set(_STEPS)
