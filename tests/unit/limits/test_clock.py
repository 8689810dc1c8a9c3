"""Goal: what is started inside a window is started then by Postgres' clock, whatever the delays.

Method: Hypothesis draws offsets, drifts and delays; the true clock is known to the test.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.limits.clock import ServerClock


@given(
    st.integers(-(10**15), 10**15),
    st.floats(-0.000_5, 0.000_5),
    st.lists(
        st.tuples(st.integers(0, 60_000_000), st.integers(0, 500_000), st.integers(0, 500_000)),
        min_size=1,
        max_size=20,
    ),
)
def test_a_window_is_never_outside_of_what_it_was_asked_for(
    offset: int, drift: float, answers: list[tuple[int, int, int]]
) -> None:
    clock, now = ServerClock(), 0

    def server(at: int) -> int:
        return at + offset + round(at * drift)

    for pause, there, back in answers:
        sent = now + pause
        looked, now = sent + there, sent + there + back
        assert clock.observe(sent, now, server(looked))
        first, last = clock.window(server(now + 300_000), server(now + 320_000))
        # Until then the clocks drift on: by less than a millisecond.
        assert server(first) >= server(now + 300_000) - 500
        assert server(last) <= server(now + 320_000) + 500


def test_quick_answers_make_a_window_wide_and_slow_ones_do_not_make_it_narrow_again() -> None:
    clock = ServerClock()
    assert clock.observe(0, 40_000, 10**9)
    first, last = clock.window(10**9 + 100_000, 10**9 + 125_000)
    assert last < first, "an answer that took 40 ms tells nothing to 25 ms"
    assert clock.observe(100_000, 100_400, 10**9 + 80_000)
    assert clock.observe(200_000, 290_000, 10**9 + 200_000)
    first, last = clock.window(10**9 + 400_000, 10**9 + 425_000)
    assert last - first > 24_000


def test_a_clock_that_was_set_is_noticed_and_believed() -> None:
    clock = ServerClock()
    assert clock.observe(0, 1_000, 10**9)
    assert not clock.observe(10_000, 11_000, 10**9 + 5_000_000)
    first, last = clock.window(10**9 + 6_000_000, 10**9 + 6_010_000)
    assert 1_000_000 < first < last < 1_030_000
    assert clock.observe(20_000, 21_000, 10**9 + 5_010_000)
