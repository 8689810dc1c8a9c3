"""Goal: what lies in a join topic is read as it was written, and nothing there can raise.

Method: records as the forking stage, a child's last stage, the timers and a redrive write them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import headers as h
from schemas.ids import MAX_CHILDREN
from schemas.state import Status
from streams.joins.wire import (
    Arrival,
    Deadline,
    Expectation,
    Expected,
    Reopen,
    encode_expectation,
    read,
)
from streams.names import Names
from streams.outcome import MAX_BRANCHES
from streams.runtime.delivery import Delivery, Target
from streams.runtime.forks import Child, ForkWriter, Split
from streams.timers.record import TimerRecord, decode
from tests.unit.deadletter.fakes import FakeRecord

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
KEY = JOB.encode()
FLOW = b"mail"
NAMES = Names("t-")
BORN = 1_760_000_000_000_000
TIME = b"2026-01-01T00:00:00.000Z"
WRITER = ForkWriter("mail", "split", NAMES.join_topic("mail"), NAMES.timers_topic, [])
PARTS = Target("t-mail.part", Status.RUNNING, b'["part"]')


def delivery(**fields: Any) -> Any:
    given_ = {"job_id": JOB, "key": KEY, "seq": 4, "born_us": BORN, "keys_of": None}
    given_ |= {"shielded": None, "cancelled_with": None}
    return SimpleNamespace(**{**given_, **fields})


def children(count: int) -> tuple[Child, ...]:
    return tuple(Child(PARTS, b"mail.part", b'{"n":%d}' % n) for n in range(count))


@given(
    st.integers(0, 3),
    st.integers(0, 1000),
    st.sampled_from(["wait", "fail", "errors"]),
    st.none() | st.just("b" * 32),
)
def test_a_fork_is_one_expectation_and_a_hand_off_for_each_child(
    count: int, first: int, rule: Any, keys_of: str | None
) -> None:
    split = Split("merge", first, count, children(count), rule, BORN + 1)
    expectation, *rest = WRITER.records(delivery(keys_of=keys_of), split, TIME)
    topic, key, value, headers = expectation
    assert topic == "t-mail.join"
    assert read(key, headers, value or b"", FLOW) == Expected(
        4,
        BORN,
        Expectation(
            stage="merge",
            forked_by="split",
            first=first,
            expected=count,
            rule=rule,
            deadline_ms=(BORN + 1) // 1000,
            keys_of=keys_of,
        ),
    )
    *handed, timer = rest
    for n, (topic, key, value, headers) in enumerate(handed, first):
        assert (topic, key) == ("t-mail.part", b"%b/%d" % (KEY, n))
        d = Delivery(FakeRecord(headers, key=key, value=value), _tracker(), 0, 0)
        d.identify(FLOW)
        assert (d.fault, d.job_id, d.seq, d.forked_at) == (None, f"{JOB}/{n}", 1, 4)
        assert d.keys_of == (None if keys_of is None else f"{keys_of}/{n}")
        assert (d.born_us, d.is_new_job, d.claimable) == (BORN, False, False)
    assert len(handed) == count
    assert timer[0] == "t-timers"


def _tracker() -> Any:
    return SimpleNamespace(topic_id=None, partition=0, place="t-mail.part[0]")


def test_the_time_that_is_up_comes_back_as_that_of_its_fork() -> None:
    split = Split("merge", 0, 0, (), "wait", BORN)
    _, (topic, key, value, headers) = WRITER.records(delivery(), split, TIME)
    timer = decode(TimerRecord(topic, UUID(int=1), 0, 0, 0, key, value, tuple(headers)))
    assert not isinstance(timer, str)
    assert (timer.due_ms, timer.return_topic) == (BORN // 1000, "t-mail.join")
    assert read(timer.trace_id.encode(), timer.headers, timer.value or b"", FLOW) == Deadline(4)


@given(
    st.integers(0, MAX_CHILDREN - 1),
    st.sampled_from([s for s in Status if s.terminal]),
    st.integers(1, 2**31 - 2),
    st.binary(max_size=30),
)
def test_an_arrival_is_what_the_child_came_to(
    n: int, status: Status, seq: int, value: bytes
) -> None:
    child = delivery(job_id=f"{JOB}/{n}", key=b"%b/%d" % (KEY, n), seq=seq)
    topic, key, brought, headers = WRITER.arrival(child, status, value, TIME)
    assert (topic, key) == ("t-mail.join", KEY)
    assert read(key, headers, brought or b"", FLOW) == Arrival(n, status, seq, value)


def test_a_redriven_record_reopens_its_join_whatever_it_was() -> None:
    headers = [(h.REDRIVE, b"t-mail.join.dlq/0/1"), (h.SEQ, b"5"), (h.FLOW, FLOW)]
    assert read(KEY, headers, b'{"kind":"rejected"}', FLOW) == Reopen(5)


GOOD = encode_expectation(
    Expectation(stage="merge", forked_by="split", first=0, expected=2, rule="wait")
)
HOP = (h.HOP, b"4;1;mail")


def changed(**fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(GOOD), **fields})


@pytest.mark.parametrize(
    ("key", "headers", "value", "says"),
    [
        (None, [HOP], GOOD, "its key is no job id"),
        (b"\xff", [HOP], GOOD, "its key is no job id"),
        (b"0" * 32, [HOP], GOOD, "its key is no job id"),
        (KEY, [], GOOD, "neither a header handoff_arrival nor a number in handoff_seq"),
        (KEY, [(h.HOP, b"0;1;mail")], GOOD, "nor a number in handoff_seq"),
        (KEY, [(h.HOP, b"9999999999;1;mail")], GOOD, "nor a number in handoff_seq"),
        (KEY, [(h.HOP, None)], GOOD, "nor a number in handoff_seq"),
        (KEY, [(h.HOP, b"4;1;other")], GOOD, "names another flow"),
        (KEY, [HOP], b"", "it is no expectation: : Invalid JSON"),
        (KEY, [HOP], changed(rule="never"), "it is no expectation: rule"),
        (KEY, [HOP], changed(expected=MAX_BRANCHES + 1), "it is no expectation: expected"),
        (KEY, [HOP], changed(first=-1), "it is no expectation: first"),
        (KEY, [(h.ARRIVAL, b"1;done")], b"", "has not three parts"),
        (KEY, [(h.ARRIVAL, b"1;done;2;3")], b"", "has not three parts"),
        (KEY, [(h.ARRIVAL, None)], b"", "has not three parts"),
        (KEY, [(h.ARRIVAL, b"x;done;2")], b"", "is no branch's end"),
        (KEY, [(h.ARRIVAL, b"1;running;2")], b"", "is no branch's end"),
        (KEY, [(h.ARRIVAL, b"1;done;0")], b"", "is no branch's end"),
        (KEY, [(h.ARRIVAL, b"%d;done;1" % MAX_CHILDREN)], b"", "is no branch's end"),
        (KEY, [(h.ARRIVAL, b"1;done;%b" % (b"9" * 5000))], b"", "is no branch's end"),
    ],
)
def test_every_bad_record_gets_a_sentence(
    key: bytes | None, headers: list[Any], value: bytes, says: str
) -> None:
    found = read(key, headers, value, FLOW)
    assert isinstance(found, str)
    assert found.startswith("it")
    assert says in found


OURS = [h.ARRIVAL, h.HOP, h.SEQ, h.FLOW, h.BORN, h.REDRIVE, h.TIMER, h.CHILDREN]
TELLING = [b"4;1;mail", b"1;done;2", b"mail", b"4", b"\xb2", b"-1", b"9" * 17, b";;", GOOD]
raw = st.none() | st.binary(max_size=12) | st.sampled_from(TELLING)


@given(
    st.none() | st.binary(max_size=40) | st.just(KEY),
    st.lists(st.tuples(st.sampled_from(OURS) | st.text(max_size=5), raw), max_size=5),
    st.binary(max_size=20) | st.just(GOOD),
)
@example(KEY, [(h.SEQ, "²".encode()), (h.FLOW, FLOW)], GOOD)
def test_nothing_that_lies_there_raises(
    key: bytes | None, headers: list[tuple[str, bytes | None]], value: bytes
) -> None:
    found = read(key, headers, value, FLOW)
    match found:
        case str():
            assert found.startswith("it")
        case Expected():
            assert 0 < found.seq < 2**31 - 1
            assert value == GOOD
        case Arrival():
            assert found.value == value
            assert found.status.terminal
        case Deadline() | Reopen():
            assert 0 < found.seq < 2**31 - 1
