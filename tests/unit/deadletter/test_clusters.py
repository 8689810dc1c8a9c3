"""Goal: letters that failed in the same way are one cluster, others are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.deadletter.clusters import Clusters, cluster_key, normalise
from tests.unit.deadletter.fakes import JOB, letter


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("job 17 failed 3 times", "job <n> failed <n> times"),
        ("took 1,234.5 s at 12:30:01", "took <n> s at <n>"),
        (f"no desk for {JOB}", "no desk for <id>"),
        (f"no desk for {JOB}/2/0", "no desk for <id>"),
        ("order 550e8400-e29b-41d4-a716-446655440000 gone", "order <id> gone"),
        ("at 0x7f3a and commit 9fceb02d0ae5", "at <hex> and commit <hex>"),
        ("the defaced facade stays", "the defaced facade stays"),
        ("KeyError: 'anna'", "KeyError: '…'"),
        ('no field "a.b" in "x y"', 'no field "…" in "…"'),
        ("can't open what isn't there", "can't open what isn't there"),
        ("cannot read /var/lib/app/data.json now", "cannot read <path> now"),
        (r"cannot read C:\Users\anna\x.txt", "cannot read <path>"),
        ("POST https://desk.example/v1/tickets/9?x=1 gave 503", "POST <url> gave <n>"),
        ("a/b is no path, and/or", "a/b is no path, and/or"),
        ("two\n  lines\t", "two lines"),
        ("", ""),
    ],
)
def test_what_differs_from_job_to_job_is_left_out(message: str, error: str) -> None:
    assert normalise(message) == error


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.text("0123456789abcdef", min_size=32, max_size=32),
    st.text("xyz ", max_size=9),
)
def test_letters_that_differ_in_ids_numbers_and_quotes_are_one(
    n: int, m: int, job: str, quoted: str
) -> None:
    text = "Stage act failed {} times: LookupError: {} has no '{}' in /srv/{}/x"
    one = letter(message=text.format(3, JOB, "subject", "a"))
    other = letter(message=text.format(n, job, quoted, m))
    assert cluster_key(one) == cluster_key(other)


def test_a_long_message_is_told_by_how_it_begins() -> None:
    one, other = (f"job {n} holds " + "too much " * 200_000 for n in (1, 1_000_000))
    assert normalise(one) == normalise(other)
    assert len(normalise(one)) <= 400
    assert normalise("'" * 1_000_000)


def test_stage_kind_and_words_tell_clusters_apart() -> None:
    topics = {"topic": "mail.enrich.dlq"}
    found = [
        letter(),
        letter(**topics),
        letter(error="rejected"),
        letter(message="Stage act failed 5 times: ValueError: yes"),
    ]
    assert len({cluster_key(x) for x in found}) == 4


def test_a_cluster_counts_and_knows_its_first_and_last() -> None:
    clusters = Clusters()
    for n, at_ms in enumerate((300, 100, 200)):
        clusters.add(letter(message=f"job {n} failed", timestamp_ms=at_ms, offset=n))
    clusters.add(letter(error="rejected"))
    first, second = clusters.largest_first()
    assert (first.letters, first.first_ms, first.last_ms) == (3, 100, 300)
    assert (first.error, first.kind, first.where) == (
        "job <n> failed",
        "handler_failed",
        "mail.act",
    )
    assert first.example == JOB
    assert (second.letters, second.kind) == (1, "rejected")
