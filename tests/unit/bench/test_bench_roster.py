"""Who is measured, with how many jobs, in which order."""

from __future__ import annotations

from infra.bench.roster import CONTROL, FAUST, OURS, PEERS, Workload, rotated


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
    assert PEERS[FAUST].jobs(Workload.THROUGHPUT, 100_000) == 8_000


def test_a_share_is_never_too_small_to_measure_nor_more_than_was_asked() -> None:
    assert PEERS[FAUST].jobs(Workload.THROUGHPUT, 1_000) == 500
    assert PEERS[FAUST].jobs(Workload.THROUGHPUT, 100) == 100
