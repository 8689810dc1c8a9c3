"""Goal: what a timer record spells is what comes back, and what is no timer says why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import headers as h
from streams.timers.record import (
    MAX_DUE_MS,
    Timer,
    TimerRecord,
    decode,
    encode,
    pack,
    returned_headers,
    unpack,
)
from tests.unit.runtime.fakes import TOPIC_ID

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"

headers = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=40)), max_size=6)


def as_read(produced: tuple[str, bytes, bytes | None, Any], **changes: Any) -> TimerRecord:
    topic, key, value, found = produced
    fields: dict[str, Any] = {"key": key, "value": value, "headers": tuple(found)}
    return TimerRecord(topic, TOPIC_ID, 0, 7, 1_700_000_000_000, **(fields | changes))


@given(
    st.integers(0, MAX_DUE_MS),
    st.none() | st.binary(max_size=80),
    headers.map(lambda found: [x for x in found if x[0] not in (h.DUE, h.RETURN)]),
)
def test_a_timer_is_read_as_it_was_written(
    due_ms: int, value: bytes | None, found: list[tuple[str, bytes | None]]
) -> None:
    timer = Timer(due_ms, "mail.classify", JOB, value, tuple(found))
    assert decode(as_read(encode(timer, "timers"))) == timer


@given(headers)
def test_packed_headers_keep_order_doubles_nulls_and_every_byte(
    found: list[tuple[str, bytes | None]],
) -> None:
    assert unpack(pack(found)) == found


TIMER = Timer(1_700_000_000_000, "mail.classify", JOB, b"{}", ((h.TIMER, b"retry"),))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": None}, "no job id"),
        ({"key": b"\xff"}, "no job id"),
        ({"headers": None}, "unreadable"),
        ({"headers": ()}, "handoff_due is no time"),
        ({"headers": ((h.DUE, None), (h.RETURN, b"a"))}, "handoff_due is no time"),
        ({"headers": ((h.DUE, b"soon"), (h.RETURN, b"a"))}, "handoff_due is no time"),
        ({"headers": ((h.DUE, b"9" * 15), (h.RETURN, b"a"))}, "handoff_due is no time"),
        ({"headers": ((h.DUE, b"9" * 99), (h.RETURN, b"a"))}, "handoff_due is no time"),
        ({"headers": ((h.DUE, b"1"),)}, "handoff_return is no topic"),
        ({"headers": ((h.DUE, b"1"), (h.RETURN, b"a b"))}, "handoff_return is no topic"),
        ({"headers": ((h.DUE, b"1"), (h.RETURN, b"timers"))}, "the timers topic itself"),
    ],
)
def test_what_is_no_timer_says_why(changes: dict[str, Any], says: str) -> None:
    found = decode(as_read(encode(TIMER, "timers"), **changes))
    assert isinstance(found, str)
    assert says in found


@given(
    st.none() | st.binary(max_size=40),
    st.none() | headers,
    st.lists(
        st.tuples(st.sampled_from([h.DUE, h.RETURN]), st.none() | st.binary(max_size=20)),
        max_size=4,
    ),
)
def test_no_record_at_all_makes_the_timekeeper_stumble(
    key: bytes | None, found: Any, ours: list[tuple[str, bytes | None]]
) -> None:
    record = as_read(
        encode(TIMER, "timers"), key=key, headers=found if found is None else (*found, *ours)
    )
    assert isinstance(decode(record), Timer | str)


def test_a_returned_record_says_what_it_is_and_keeps_the_rest() -> None:
    old = (h.TRACEPARENT, f"00-{JOB}-4bf92f3577b30004-01".encode())
    before = [(h.SEQ, b"3"), ("x", b"1"), old, (h.CE_TYPE, b"mail.classified"), ("x", None)]
    found = returned_headers(
        before,
        kind=b"retry",
        flow=b"mail",
        seq=4,
        born_us=5,
        attempts=2,
        raw_key=b"customer-7",
        job=JOB.encode(),
    )
    assert found == [
        (h.TIMER, b"retry"),
        (h.SEQ, b"4"),
        (h.FLOW, b"mail"),
        (h.BORN, b"5"),
        (h.ATTEMPT, b"2"),
        (h.RAW_KEY, b"customer-7"),
        ("x", b"1"),
        (h.CE_TYPE, b"mail.classified"),
        ("x", None),
        (h.TRACEPARENT, f"00-{JOB}-4bf92f3577b30005-01".encode()),
    ]
    again = returned_headers(
        found,
        kind=b"retry",
        flow=b"mail",
        seq=5,
        born_us=5,
        attempts=3,
        raw_key=JOB.encode(),
        job=JOB.encode(),
    )
    assert [n for n, _ in again].count(h.TIMER) == 1
    assert [v for n, v in again if n == h.TRACEPARENT] == [f"00-{JOB}-4bf92f3577b30006-01".encode()]
    assert dict(again)[h.RAW_KEY] == b"customer-7", "the raw key survives a second wait"
    assert dict(again)[h.ATTEMPT] == b"3"


def test_a_foreign_traceparent_becomes_the_link_and_stays_it() -> None:
    foreign = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    first = h.traced([("x", b"1"), (h.TRACEPARENT, foreign)], JOB, 1)
    ours = (h.TRACEPARENT, f"00-{JOB}-4bf92f3577b30002-01".encode())
    assert first == [("x", b"1"), (h.LINK, foreign), ours]
    assert h.traced(first, JOB, 1) == first
    other = (h.TRACEPARENT, foreign[:-1] + b"0")
    assert h.traced([*first[:2], other, other], JOB, 1) == first
