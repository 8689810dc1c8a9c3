"""Two looks at a partition in, one verdict out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.deadletter.reader import Span
from streams.kafka import GroupFacts, Member, TopicFacts
from streams.names import Names
from streams.why.facts import WorkerRow
from streams.why.group_facts import groups_of, is_in_use, unfinished
from streams.why.lag import Pace, Reason, Seen, judge
from streams.why.topic_facts import Part

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LOST_S = 30.0


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


OWNER = WorkerRow(
    slot=0,
    incarnation="ab12",
    pid=4711,
    host="node-1",
    seen_at=ago(2),
    ended_at=None,
    clean=None,
    paused=None,
    paused_since=None,
    account={"limit_s": 60.0, "in_work": 0, "waiting": 0, "runs": [], "waits": []},
)

BEHIND = Seen(
    group="mail.act",
    agent="act",
    flow="mail",
    topic="mail.act",
    partition=1,
    head=100,
    end=140,
    records=38,
    exact=True,
    oldest_at=ago(90),
    moved=0,
    apart_s=4.0,
    settled=True,
    slot=0,
    owner=OWNER,
)


def says(**account: Any) -> WorkerRow:
    return replace(OWNER, account={**(OWNER.account or {}), **account})


def test_a_group_that_has_done_everything_is_idle_whoever_owns_it() -> None:
    # Its position lies before the end: what is left there are markers of transactions.
    done = replace(BEHIND, records=0, oldest_at=None, slot=None, owner=None)
    lag = judge(done, NOW, LOST_S)
    assert (lag.pace, lag.reason, lag.seconds) == (Pace.IDLE, None, 0.0)


def test_one_that_finishes_records_moves_even_if_its_worker_was_not_heard_of() -> None:
    lag = judge(replace(BEHIND, moved=8, owner=replace(OWNER, seen_at=ago(900))), NOW, LOST_S)
    assert (lag.pace, lag.per_s, lag.seconds) == (Pace.MOVING, 2.0, 90.0)


def test_the_clock_of_a_writer_that_runs_ahead_makes_no_negative_age() -> None:
    assert judge(replace(BEHIND, oldest_at=ago(-5)), NOW, LOST_S).seconds == 0.0


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"head": None, "slot": None, "owner": None}, Reason.NO_POSITION, "handoff topics apply"),
        ({"slot": None, "owner": None}, Reason.NO_WORKER, "handoff worker act"),
        (
            {"owner": replace(OWNER, clean=True, ended_at=ago(3))},
            Reason.NO_WORKER,
            "was stopped at 2026-03-01 11:59:57Z",
        ),
        ({"owner": replace(OWNER, seen_at=ago(31))}, Reason.LOST, "last heard of at"),
        (
            {"owner": replace(OWNER, paused="the desk is away", paused_since=ago(60))},
            Reason.PAUSED,
            "Paused since 2026-03-01 11:59:00Z: the desk is away.",
        ),
        (
            {"owner": says(in_work=2, runs=[["a", 1, 61.0], ["b", 1, 5.0]])},
            Reason.OVER_LIMIT,
            "A run takes 61 s, and its time limit is 60 s",
        ),
        ({"slot": -1, "owner": None}, Reason.SILENT, "nothing within 4 s"),
        ({}, Reason.SILENT, "tells of no work"),
        # The projector gives no account.
        ({"owner": replace(OWNER, account=None)}, Reason.SILENT, "tells of no work"),
    ],
)
def test_it_is_stuck(changes: dict[str, Any], reason: Reason, words: str) -> None:
    lag = judge(replace(BEHIND, **changes), NOW, LOST_S)
    assert (lag.pace, lag.reason) == (Pace.STUCK, reason)
    assert words in lag.why


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slot": None, "owner": None, "settled": False}, "hands out its partitions"),
        ({"owner": says(in_work=2, runs=[["a", 1, 59.0]])}, "2 in work, the longest for 59 s."),
        ({"owner": says(waiting=3)}, "3 wait for their next attempt."),
        ({"owner": says(limited=3)}, "3 wait for a limit of their stage."),
        ({"oldest_at": ago(1)}, "after the worker's last sign of life"),
        ({"oldest_at": ago(1), "owner": replace(OWNER, account=None)}, "last sign of life"),
    ],
)
def test_it_moves_though_nothing_was_finished_meanwhile(
    changes: dict[str, Any], words: str
) -> None:
    lag = judge(replace(BEHIND, **changes), NOW, LOST_S)
    assert (lag.pace, lag.reason) == (Pace.MOVING, None)
    assert words in lag.why


def test_every_installation_has_its_stages_and_the_agents_that_serve_all() -> None:
    found = groups_of(Names("x-"), [("mail", "act")])
    assert [(g.name, g.agent, g.topic, g.table) for g in found] == [
        ("x-mail.act", "act", "x-mail.act", None),
        ("x-projector", "projector", "x-job-state", "projection_offsets"),
        ("x-timers", "timers", "x-timers", "timer_offsets"),
        ("x-tracer", "tracer", "x-job-state", "tracer_offsets"),
    ]


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=4),
)
def test_offsets_that_no_range_finishes_are_counted_once(
    start: int, end: int, runs: list[tuple[int, int]]
) -> None:
    ranges, at = [], 0
    for gap, length in runs:
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    left = set(range(start, end)) - {n for a, b in ranges for n in range(a, b)}
    assert unfinished(start, end, ranges) == len(left)


def test_a_partition_that_finishes_out_of_order_has_moved() -> None:
    topic = TopicFacts("mail.act", UUID(int=1), 1)
    span = Span(topic, 0, 0, 10, 20)
    assert Part(span, 10, ()).passed < Part(span, 10, ((12, 13),)).passed


def test_the_slot_of_a_member_is_read_back_from_its_name() -> None:
    assert Names.slot_of("mail.act", Names.member("mail.act", 12)) == 12
    assert Names.slot_of("mail.act", "rdkafka-4bf9") is None


@pytest.mark.parametrize(
    ("members", "workers", "shown"),
    [
        ((), (), False),
        ((), (replace(OWNER, clean=True, ended_at=ago(3)),), False),
        ((), (OWNER,), True),
        ((), (replace(OWNER, clean=False, ended_at=ago(3)),), True),
        ((Member("tracer-0", "/127.0.0.1"),), (), True),
    ],
)
def test_a_tracer_is_shown_if_it_runs_or_was_lost(
    members: tuple[Member, ...], workers: tuple[WorkerRow, ...], shown: bool
) -> None:
    assert is_in_use(GroupFacts("STABLE", members, {}), workers) is shown
