"""Goal: whatever finishes in whatever order, a restart delivers exactly what was not committed.

Method: a model partition with gaps is delivered, finished and committed at random; at random the
worker "dies" and a new tracker starts from head and map, as the broker would give them.
"""

from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from streams.offsets import decode_map, encode_map
from streams.runtime.tracker import Tracker

TOPIC = uuid4()
ROOMY = 4_096


def tracker(head: int = 0, metadata: str | None = None) -> Tracker:
    metadata = encode_map(TOPIC, head, []) if metadata is None else metadata
    return Tracker(
        topic="t",
        topic_id=TOPIC,
        partition=0,
        head=head,
        metadata=metadata,
        finished=decode_map(metadata, topic_id=TOPIC, committed=head, where="t[0]"),
    )


def deliver(t: Tracker, offsets: list[int]) -> dict[int, int]:
    """Numbers of those that are to be run, by offset."""
    numbers = {o: t.deliver(o) for o in offsets}
    return {o: n for o, n in numbers.items() if n is not None}


def commit(t: Tracker, numbers: list[int], limit: int = ROOMY) -> list[int]:
    candidate = t.plan(numbers, limit)
    assert len(candidate.metadata) <= limit
    t.promote(candidate)
    return list(candidate.numbers)


@st.composite
def partitions(draw: st.DrawFn) -> list[int]:
    """Offsets of the records of a partition; markers and compaction leave gaps."""
    steps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=120))
    offsets, at = [], draw(st.integers(0, 5)) - 1
    for step in steps:
        at += step
        offsets.append(at)
    return offsets


@given(partitions(), st.data())
def test_each_record_is_finished_once_over_any_crashes(
    offsets: list[int], data: st.DataObject
) -> None:
    committed: list[int] = []
    at, metadata = 0, encode_map(TOPIC, 0, [])
    limit = data.draw(st.sampled_from([64, 80, ROOMY]))
    for _ in range(200):
        t = tracker(at, metadata)
        left = [o for o in offsets if o >= at]
        # A life reads a part of what is left, then commits some of it, in several batches.
        reads = data.draw(st.integers(0, len(left)), label="read")
        running = deliver(t, left[:reads])
        by_number = {n: o for o, n in running.items()}
        waiting = data.draw(st.permutations(sorted(by_number)), label="order")
        while waiting and data.draw(st.booleans(), label="go on"):
            size = data.draw(st.integers(1, len(waiting)), label="batch")
            done = commit(t, waiting[:size], limit)
            committed += [by_number[n] for n in done]
            waiting = [n for n in waiting if n not in set(done)]
            if not done:
                break
        at, metadata = t.head, t.metadata
        assert len(committed) == len(set(committed)), "a finished record was delivered again"
        if len(committed) == len(offsets):
            break
    else:
        # Nothing random any more: one life that finishes in order must finish everything.
        t = tracker(at, metadata)
        running = deliver(t, [o for o in offsets if o >= at])
        assert commit(t, sorted(running.values())) == sorted(running.values())
        committed += list(running)
    assert sorted(committed) == offsets


def test_the_head_is_the_smallest_unfinished_offset_and_gaps_do_not_count() -> None:
    t = tracker()
    n = deliver(t, [0, 3, 4, 9])
    commit(t, [n[0], n[4]])
    assert t.head == 3
    assert decode_map(t.metadata, topic_id=TOPIC, committed=3, where="") == [(4, 9)]


def test_ranges_read_back_are_carried_until_the_read_position_has_passed_them() -> None:
    first = tracker()
    n = deliver(first, list(range(10)))
    commit(first, [n[o] for o in (5, 6, 7, 9)])
    second = tracker(first.head, first.metadata)
    m = deliver(second, [0, 1])
    commit(second, [m[0]])
    third = tracker(second.head, second.metadata)
    assert sorted(deliver(third, list(range(1, 10)))) == [1, 2, 3, 4, 8]


def test_a_candidate_changes_nothing_until_it_is_promoted() -> None:
    t = tracker()
    n = deliver(t, [0, 1, 2])
    before = (t.head, t.metadata)
    planned = t.plan([n[0]], ROOMY)
    assert (t.head, t.metadata) == before
    assert planned.head == 1
    t.promote(planned)
    assert t.head == 1


def test_deliveries_after_the_plan_survive_its_promotion() -> None:
    t = tracker()
    n = deliver(t, [0, 1])
    planned = t.plan(list(n.values()), ROOMY)
    late = deliver(t, [2, 3])
    t.promote(planned)
    assert t.head == 2
    commit(t, [late[2]])
    assert t.head == 3


def test_a_full_map_takes_those_nearest_to_the_head_and_lets_the_rest_wait() -> None:
    t = tracker()
    n = deliver(t, list(range(1_000)))
    odd = [n[o] for o in range(1, 1_000, 2)]
    taken = commit(t, odd, limit=128)
    assert 0 < len(taken) < len(odd)
    assert max(taken) < min(set(odd) - set(taken))
    rest = [x for x in n.values() if x not in set(taken)]
    assert sorted(commit(t, rest, limit=128)) == sorted(rest)
    assert t.head == 1_000


def test_one_unfinished_head_among_many_keeps_a_short_map() -> None:
    t = tracker()
    n = deliver(t, list(range(100_000)))
    commit(t, [n[o] for o in range(1, 100_000)], limit=64)
    assert t.head == 0
    assert t.window == 100_000
