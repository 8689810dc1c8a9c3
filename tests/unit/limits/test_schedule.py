"""Goal: whoever asks and whenever, no interval sees more starts than the rate, no key is held up by
another, and nothing is left unused while somebody waits.

Method: Hypothesis plays workers with clocks of their own, delays of every kind, and lost answers,
against the real book-keeping and the real arithmetic of clocks.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streams.limits import Limit
from streams.limits.clock import ServerClock
from streams.limits.limit import Claim
from streams.limits.schedule import FAR_US, LOOKAHEAD_US, Ask, Row, decide
from tests.support.limiting import most_within

NOW = 1_700_000_000_000_000
LEAD = 15_000
MODEL, OTHER = ("model", "a"), ("model", "b")


def row(limit: Limit, free: int | None = None) -> Row:
    return Row(limit.spacing_us, free, limit.spacing_us or 0)


#: Low rates: few asks are enough for more starts than they allow.
_LIMITS = st.builds(
    Limit,
    st.just("model"),
    rate=st.sampled_from([1, 2, 3, 5, 20]),
    per=st.sampled_from([timedelta(seconds=s) for s in (1, 1.3, 2, 10)]),
)
_EXTREMES = st.sampled_from([0.0, 0.5, 1.0])


#: When a worker asks after the one before, how long the way there and back takes, how late in its
#: window it starts, how long it then stands still before the handler's first line; whether the
#: answer is lost.
_ASKS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 700_000),
        st.integers(100, 12_000),
        st.integers(100, 12_000),
        _EXTREMES,
        _EXTREMES,
        st.sampled_from([False, False, False, True]),
        st.integers(1, 3),
    ),
    min_size=4,
    max_size=40,
)


@given(_LIMITS, _ASKS, st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3))
def test_no_interval_sees_more_starts_than_the_rate(
    limit: Limit, asks: list[tuple[int, int, int, int, float, float, bool, int]], offsets: list[int]
) -> None:
    """`offsets`: of the workers' clocks. True time is Postgres'."""
    kept, clocks = row(limit), [ServerClock() for _ in offsets]
    now, moments, starts = NOW, [], []
    for worker, pause, there, back, late, still, lost, wanted in asks:
        now += pause
        mine, sent = clocks[worker], now + offsets[worker]
        now += there
        [got] = decide({MODEL: kept}, [Ask((MODEL,), wanted)], 100, now, LEAD)
        moments += got.starts
        came = now + back + offsets[worker]
        if lost:
            continue
        assert mine.observe(sent, came, now)
        for at in got.starts:
            first, last = mine.window(at, at + limit.window_us)
            begins = max(first, came) + (last - max(first, came)) * late
            if first <= begins <= last:
                stands_still = round((limit.slack_us - limit.window_us) * still)
                start = round(begins) - offsets[worker] + stands_still
                assert at <= start <= at + limit.slack_us
                starts.append(start)
    assert limit.rate is not None
    assert most_within(starts, limit.per) <= limit.rate
    for turn in range(limit.rate + 1):
        # The worst that may come of these moments: one late, those after it in time.
        worst = [
            at + (limit.slack_us if n % (limit.rate + 1) == turn else 0)
            for n, at in enumerate(moments)
        ]
        assert most_within(worst, limit.per) <= limit.rate


@given(_LIMITS, st.lists(st.tuples(st.integers(0, 900_000), st.integers(1, 9)), max_size=30))
def test_nothing_is_left_unused_while_somebody_waits(
    limit: Limit, asks: list[tuple[int, int]]
) -> None:
    """Asked again before what was given is over, moments follow one another without a gap."""
    kept, given_out, now = row(limit), list[int](), NOW
    for pause, _ in asks:
        now += min(pause, LOOKAHEAD_US)
        [got] = decide({MODEL: kept}, [Ask((MODEL,), 10**6)], 10**6, now, LEAD)
        given_out += got.starts
        assert got.next_us is not None
        assert got.next_us > now + LEAD + LOOKAHEAD_US
    spacing = limit.spacing_us
    assert spacing is not None
    gaps = [b - a for a, b in pairwise(given_out)]
    assert all(spacing <= gap <= max(spacing, LOOKAHEAD_US + LEAD + spacing) for gap in gaps)
    if spacing < LOOKAHEAD_US:
        assert sum(gap > spacing for gap in gaps) == 0


def test_a_spacing_loses_a_tenth_of_the_rate_at_most() -> None:
    assert Limit("model", rate=20).spacing_us == 55_000
    assert Limit("model", rate=600, per=timedelta(minutes=1)).spacing_us == 100_417


def test_another_key_is_not_held_up_and_a_shared_limit_is_shared_evenly() -> None:
    """Two tenants of one model: one may start once in a second and has thousands waiting."""
    model, slow, quick = ("model", ""), ("tenant", "slow"), ("tenant", "quick")
    rows: dict[Claim, Row] = {
        model: row(Limit("model", rate=20)),
        slow: row(Limit("tenant", rate=1)),
        quick: row(Limit("tenant", rate=1_000)),
    }
    got = [0, 0]
    for turn in range(20):
        asks = [Ask((model, slow), 10_000), Ask((model, quick), 10_000)]
        for n, given_ in enumerate(decide(rows, asks, 10**6, NOW + turn * 250_000, LEAD)):
            got[n] += len(given_.starts)
    # In 5.25 s one in 1.1 s, and all others of the model's 96 moments.
    assert got == [5, 91]


def test_places_bound_what_is_given_and_a_line_without_one_is_not_told_a_moment() -> None:
    rows = {MODEL: Row(None, 2, 1), OTHER: Row(None, 0, 1)}
    taken, none = decide(rows, [Ask((MODEL,), 5), Ask((OTHER,), 5)], 10, NOW, LEAD)
    assert (len(taken.starts), taken.next_us) == (2, None)
    assert (none.starts, none.next_us) == ([], None)


def test_no_more_is_given_than_there_is_room_for_and_lines_share_it() -> None:
    rows = {MODEL: row(Limit("m", rate=1_000)), OTHER: row(Limit("m", rate=1_000))}
    got = decide(rows, [Ask((MODEL,), 50), Ask((OTHER,), 50)], 10, NOW, LEAD)
    assert [len(g.starts) for g in got] == [5, 5]


def test_those_who_are_sent_away_come_back_one_after_the_other() -> None:
    limit = Limit("model", rate=20)
    kept = row(limit)
    wakes: list[int] = []
    for _ in range(3):
        [got] = decide({MODEL: kept}, [Ask((MODEL,), 0, parks=100)], 0, NOW, LEAD)
        wakes += got.wakes
    assert wakes == [NOW + 1_000_000 + n * 55_000 for n in range(300)]


def test_who_is_sent_away_by_a_slow_limit_comes_back_for_its_next_moment() -> None:
    limit = Limit("model", rate=1, per=timedelta(minutes=1))
    kept = row(limit)
    [got] = decide({MODEL: kept}, [Ask((MODEL,), 1)], 1, NOW, LEAD)
    [later] = decide({MODEL: kept}, [Ask((MODEL,), 0, parks=2)], 1, NOW + 50_000_000, LEAD)
    assert later.wakes == [got.starts[0] + 60_250_000, got.starts[0] + 2 * 60_250_000]
    [at_last] = decide({MODEL: kept}, [Ask((MODEL,), 1)], 1, later.wakes[0], LEAD)
    assert at_last.starts == [later.wakes[0] + LEAD]


def test_a_clock_that_was_set_back_costs_seconds_and_no_rule() -> None:
    limit = Limit("model", rate=20)
    kept = row(limit)
    [before] = decide({MODEL: kept}, [Ask((MODEL,), 100)], 100, NOW, LEAD)
    hour = 3_600_000_000
    asks = [Ask((MODEL,), 100)]
    [after] = decide({MODEL: kept}, asks, 100, NOW - hour, LEAD)
    assert after.starts == []
    assert after.next_us is not None
    # What was given out comes within the longest lead, whatever the clock is called then.
    assert after.next_us - (NOW - hour) == FAR_US
    [soon] = decide({MODEL: kept}, asks, 100, NOW - hour + FAR_US - 600_000, LEAD)
    assert soon.starts == []
    [later] = decide({MODEL: kept}, asks, 100, NOW - hour + FAR_US, LEAD)
    assert later.starts
    assert before.starts[-1] - NOW < FAR_US
