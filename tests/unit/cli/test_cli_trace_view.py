"""The waterfall: phases never negative, idle time shortened, work always visible."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from schemas.state import HopTiming, JobError, Status
from streams.cli.trace_view import as_json, show
from streams.state.forks import ForkStory, Join
from streams.state.views import Effect, Hop
from streams.state.waterfall import COMPRESSED, QUEUED, WORKING, Axis, took_us, waterfall

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
START = 1_700_000_000_000_000


def hop(
    seq: int,
    stage: str,
    *times_ms: int,
    status: Status = Status.RUNNING,
    to: tuple[str, ...] = ("next",),
    attempts: int = 1,
    error: JobError | None = None,
) -> Hop:
    """`times_ms`: produced, started, finished, committed, after the job's birth."""
    produced, started, finished, committed = (START + 1_000 * t for t in times_ms)
    timing = HopTiming(
        born_us=START,
        produced_us=produced,
        polled_us=produced,
        started_us=started,
        finished_us=finished,
    )
    return Hop(
        trace_id=JOB,
        seq=seq,
        flow="mail",
        stage=stage,
        status=status,
        attempts=attempts,
        to=to,
        data=None,
        error=error,
        usage=None,
        link=None,
        worker="0.ab",
        consumed=None,
        timing=timing,
        committed_us=committed,
        updated_at=datetime.fromtimestamp(committed / 1e6, UTC),
        topic_id=UUID(int=1),
        partition=0,
        offset=seq,
    )


def effect(stage: str, settled: bool = True, claimed_ms: int = 1) -> Effect:
    """`claimed_ms` after the job's birth."""
    claimed = datetime.fromtimestamp(START / 1e6, UTC) + timedelta(milliseconds=claimed_ms)
    return Effect(
        key=f"{JOB}:{stage}:0:reply",
        trace_id=JOB,
        flow="mail",
        stage=stage,
        name="reply",
        status="done" if settled else "claimed",
        idempotent=True,
        calls=2,
        result=None,
        note=None,
        claimed_at=claimed,
        leased_until=claimed + timedelta(minutes=1),
        settled_at=claimed + timedelta(milliseconds=5) if settled else None,
    )


def drawn(
    hops: list[Hop],
    effects: list[Effect] | None = None,
    now_ms: int | None = None,
    forks: Sequence[ForkStory] = (),
) -> str:
    width = 260 if forks else 140
    console = Console(width=width, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        now_us = None if now_ms is None else START + 1_000 * now_ms
        show(waterfall(hops, effects or (), now_us, forks), console)
    return console.export_text()


def test_hops_stand_in_the_order_of_their_steps() -> None:
    story = waterfall([hop(2, "b", 3, 4, 5, 6), hop(1, "a", 0, 1, 2, 3)])
    assert [lane.hop.stage for lane in story.lanes] == ["a", "b"]
    assert story.total_us == 6_000


def test_phases_add_up_to_the_hop() -> None:
    (lane,) = waterfall([hop(1, "a", 0, 10, 30, 35)]).lanes
    assert (lane.queued_us, lane.working_us, lane.committing_us) == (10_000, 20_000, 5_000)


def test_a_clock_that_is_behind_makes_no_negative_phase() -> None:
    (lane,) = waterfall([hop(1, "a", 10, 5, 7, 6)]).lanes
    assert (lane.queued_us, lane.working_us, lane.committing_us) == (0, 0, 0)


def test_a_long_wait_is_compressed_and_said() -> None:
    text = drawn([hop(1, "a", 0, 1, 2, 3), hop(2, "b", 3, 60_000, 60_001, 60_002)])
    assert COMPRESSED in text
    assert "time compressed" in text
    assert "queued 60 s" in text


def test_a_short_wait_is_drawn_to_scale() -> None:
    axis = Axis(waterfall([hop(1, "a", 0, 10, 90, 100)]), 50)
    assert not axis.compressed
    bar = axis.bar(waterfall([hop(1, "a", 0, 10, 90, 100)]).lanes[0])
    assert (bar.count(QUEUED), bar.count(WORKING)) == (5, 40)


def test_a_fork_is_one_line_and_a_wait_for_branches_is_none_for_a_person() -> None:
    start = datetime.fromtimestamp(START / 1e6, UTC)
    join = Join(
        parent=JOB,
        seq=1,
        flow="mail",
        forked_by="a",
        stage="merge",
        first=0,
        expected=10_000,
        rule="wait",
        deadline_at=None,
        status="joined",
        reason=None,
        done=9_998,
        failed=2,
        late=0,
        forked_at=start,
        closed_at=start + timedelta(seconds=30),
    )
    hops = [
        hop(1, "a", 0, 1, 2, 3, status=Status.WAITING, to=("join",)),
        hop(2, "join", 29_000, 29_001, 29_002, 30_000, to=("merge",)),
    ]
    story = ForkStory(join, f"{JOB}/77", start + timedelta(seconds=29))
    text = drawn(hops, forks=[story])
    assert "⋔ 10,000 branches to merge: 9,998 done, 2 failed, 0 missing; joined after 30 s" in text
    assert f"the last to end, {JOB}/77, took 29 s" in " ".join(text.split())
    assert "⋯ 29 s until the record that ended its wait for branches" in text
    document = as_json(waterfall(hops, forks=[story]))
    assert document["hops"][0]["fork"]["took_us"] == 30e6  # type: ignore[index]
    unread = drawn(hops[:1])
    assert "waits for branches" in unread
    assert "person" not in unread


def test_effects_and_errors_stand_below_their_hop() -> None:
    last = hop(
        1,
        "act",
        0,
        1,
        2,
        3,
        status=Status.FAILED,
        to=(),
        attempts=5,
        error=JobError(kind="rejected", message="no such [desk]"),
    )
    text = drawn([last], [effect("act"), effect("act", settled=False)])
    assert "reply" in text
    assert "2 calls, 5 ms" in text
    assert "rejected: no such [desk]" in text
    assert "5 attempts" in text
    assert "failed" in text


def test_an_effect_stands_once_below_the_step_that_claimed_it() -> None:
    hops = [
        hop(1, "act", 0, 10, 20, 21, status=Status.FAILED),
        hop(2, "act", 500, 510, 520, 521, status=Status.DONE),
    ]
    early, late, later = (effect("act", claimed_ms=ms) for ms in (15, 515, 900))
    lanes = waterfall(hops, [early, late, later]).lanes
    assert [lane.effects for lane in lanes] == [(early,), (late, later)]


def test_the_step_under_way_is_drawn_with_its_effects() -> None:
    hops = [hop(1, "a", 0, 1, 2, 3, to=("act",))]
    begun = effect("act", settled=False, claimed_ms=900)
    story = waterfall(hops, [begun], START + 5_000_000)
    assert story.pending is not None
    assert (story.pending.seq, story.pending.effects) == (2, (begun,))
    assert story.total_us == 5_000_000
    text = drawn(hops, [begun], now_ms=5_000)
    assert "2 act" in text
    assert "handed on 5 s ago" in text
    assert "not committed" in text
    assert "↳ reply" in text


def test_a_job_that_has_ended_has_no_step_under_way() -> None:
    last = hop(1, "a", 0, 1, 2, 3, status=Status.DONE, to=())
    assert waterfall([last], now_us=START + 10**9).pending is None


def test_timers_dead_letters_and_redrives_are_said_with_their_waits() -> None:
    failed = JobError(kind="ValueError", message="no")
    hops = [
        hop(1, "a", 0, 1, 2, 3, status=Status.WAITING, to=(), error=failed),
        hop(2, "a", 60_003, 60_004, 60_005, 60_006, status=Status.FAILED, to=(), error=failed),
        hop(3, "a", 90_006, 90_007, 90_008, 90_009, status=Status.DONE, to=()),
    ]
    text = drawn(hops)
    assert "60 s until its timer had returned it" in text
    assert "30 s until it was redriven" in text
    assert f"handoff dlq show {JOB}" in text
    assert "waits for a person" in text
    assert "are not drawn" in text


def test_an_unsettled_effect_has_no_duration() -> None:
    assert took_us(effect("act", settled=False)) is None


def test_the_json_has_the_phases() -> None:
    document = as_json(waterfall([hop(1, "a", 0, 10, 30, 35)]))
    (lane,) = document["hops"]  # type: ignore[misc]
    assert lane["working_us"] == 20_000


phases = st.lists(
    st.tuples(*[st.integers(0, 10**9)] * 4).map(lambda t: tuple(sorted(t))), min_size=1, max_size=8
)


@given(phases, st.integers(20, 80))
def test_every_bar_is_as_wide_as_the_axis_and_shows_work(
    times: list[tuple[int, ...]], columns: int
) -> None:
    story = waterfall([hop(n, "a", *(x // 1000 for x in t)) for n, t in enumerate(times, 1)])
    axis = Axis(story, columns)
    for lane in story.lanes:
        bar = axis.bar(lane)
        assert len(bar) == columns
        assert WORKING in bar


@given(phases)
def test_later_times_are_never_drawn_further_left(times: list[tuple[int, ...]]) -> None:
    story = waterfall([hop(n, "a", *(x // 1000 for x in t)) for n, t in enumerate(times, 1)])
    axis = Axis(story, 60)
    marks = sorted(t for lane in story.lanes for t in (lane.started_us, lane.committed_us))
    columns = [axis.column(t) for t in marks]
    assert columns == sorted(columns)
