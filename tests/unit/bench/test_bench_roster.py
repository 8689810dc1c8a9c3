"""Who is measured, with how many jobs, in which order."""

from __future__ import annotations

import pytest
import typer

from infra.bench.__main__ import chosen_peers
from infra.bench.roster import (
    CONTROL,
    FAUST,
    OURS,
    OURS_PER_STAGE,
    OWN_PEERS,
    PEERS,
    Workload,
    rotated,
)


def test_each_round_starts_with_another_peer_and_leaves_none_out() -> None:
    names = ["a", "b", "c"]
    orders = [rotated(names, turn) for turn in range(4)]
    assert [order[0] for order in orders] == ["a", "b", "c", "a"]
    assert all(sorted(order) == names for order in orders)


def test_the_order_of_no_peers_is_empty() -> None:
    assert rotated([], 3) == []


def test_ours_and_the_control_get_every_job_and_a_slow_peer_a_share() -> None:
    assert PEERS[OURS].jobs(Workload.THROUGHPUT, 100_000) == 100_000
    assert PEERS[CONTROL].jobs(Workload.THROUGHPUT, 100_000) == 100_000
    assert PEERS[FAUST].jobs(Workload.THROUGHPUT, 100_000) == 5_000


def test_a_share_is_never_too_small_to_measure_nor_more_than_was_asked() -> None:
    assert PEERS[FAUST].jobs(Workload.THROUGHPUT, 1_000) == 500
    assert PEERS[FAUST].jobs(Workload.THROUGHPUT, 100) == 100


def test_the_control_takes_part_whoever_is_chosen_since_it_is_the_divisor() -> None:
    assert chosen_peers("handoff, faust,handoff") == [CONTROL, OURS, FAUST]


def test_without_a_choice_all_but_the_extras_take_part() -> None:
    assert chosen_peers(None) == [
        CONTROL,
        OURS,
        OURS_PER_STAGE,
        "bare-loop",
        FAUST,
        "faust-tuned",
    ]


def test_an_unknown_peer_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(typer.BadParameter, match="no peer celery; there are control, handoff"):
        chosen_peers("handoff,celery")


def test_who_comes_first_of_the_pair_of_tracing_changes_and_both_get_every_job() -> None:
    pair = OWN_PEERS[Workload.TRACING]
    assert rotated(pair, 1) == list(reversed(rotated(pair, 0)))
    assert [PEERS[name].jobs(Workload.TRACING, 1_000) for name in pair] == [1_000, 1_000]
