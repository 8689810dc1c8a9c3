"""The audit reads join topics by itself: it must read them as the join agent does."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas import headers as h
from schemas.ids import child_id
from streams.audit.join_wire import Arrived, Began, Expected, Fired, Sent, read_join
from streams.audit.wire import Claim, Kind, pack, unpack
from streams.joins.wire import Arrival, Cancel, Deadline, Reopen, read
from streams.joins.wire import Expected as Expects
from streams.orchestration import wire as runs
from tests.unit.audit.test_audit_wire import ID, TOPIC_ID, Message

_KEYS = st.sampled_from([ID.encode(), f"{ID}/2".encode(), None, b"order\xff", b"x"])
_NUMBERS = st.sampled_from(
    [b"", b"0", b"3", b"99999", b"100000", b"2147483646", b"2147483647", b"-1", b" 4", b"9" * 17]
)
_ENDS = st.sampled_from([b"done", b"failed", b"cancelled", b"running", b""])
_ARRIVALS = st.one_of(
    st.builds(lambda n, end, seq: b";".join((n, end, seq)), _NUMBERS, _ENDS, _NUMBERS),
    st.sampled_from([b"", b"1;done", b"1;done;2;3"]),
)
_FLOWS = st.sampled_from([b"run", b"mail"])
_HEADERS = st.lists(
    st.one_of(
        st.tuples(st.just(h.ARRIVAL), _ARRIVALS),
        st.tuples(st.just(h.HOP), st.builds(lambda n, f: b"%b;17;%b" % (n, f), _NUMBERS, _FLOWS)),
        st.tuples(st.just(h.SEQ), _NUMBERS),
        st.tuples(st.just(h.FLOW), _FLOWS),
        st.tuples(st.just(h.REDRIVE), st.just(b"run.join.dlq/0/1")),
        st.tuples(st.just(h.TIMER), st.just(b"deadline")),
        st.tuples(st.just(h.CANCEL), st.sampled_from([ID.encode(), b"\xff"])),
        st.tuples(st.just(h.COMMAND), _NUMBERS),
        st.tuples(st.just(h.RUN), st.just(b"refund")),
        st.tuples(st.just(h.SENT), st.sampled_from([b"", b"5f", b"\xff"])),
    ),
    max_size=4,
)
_VALUES = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(["merge", 1]),
        "forkedBy": st.sampled_from(["split", None]),
        "first": st.sampled_from([0, 99_999, 100_000, -1]),
        "expected": st.sampled_from([0, 10_000, 10_001, -1]),
        "rule": st.sampled_from(["wait", "fail", "errors", "hope"]),
    },
    optional={
        "deadlineMs": st.sampled_from([None, 0, 1_700_000_000_000, -1]),
        "keysOf": st.sampled_from([None, ID, 1]),
        "shielded": st.sampled_from([None, ID, 1]),
        "firstChild": st.sampled_from([0, 100_000, 100_001, -1]),
        "input": st.sampled_from([None, {"n": 1}]),
        "signal": st.sampled_from([None, "approval", 1]),
        "timeoutMs": st.sampled_from([None, 0, -1]),
        "name": st.sampled_from(["approval", 1]),
        "at": st.sampled_from(["2026-05-01T12:00:00+00:00", "soon", 1]),
    },
)
_WHOLE = {"stage": "merge", "forkedBy": "split", "first": 0, "expected": 50, "rule": "wait"}

_RUN = {"stage": "refund", "firstChild": 2, "input": {"n": 1}, "signal": "approval", "timeoutMs": 5}


@settings(max_examples=400)
@given(_KEYS, _HEADERS, _VALUES)
@example(ID.encode(), [(h.HOP, b"3;17;run")], _WHOLE)
@example(ID.encode(), [(h.ARRIVAL, b"3;done;7")], _WHOLE)
@example(ID.encode(), [(h.TIMER, b"deadline"), (h.SEQ, b"3"), (h.FLOW, b"run")], _WHOLE)
@example(ID.encode(), [(h.TIMER, b"run"), (h.HOP, b"3;17;run"), (h.COMMAND, b"0")], _WHOLE)
@example(ID.encode(), [(h.HOP, b"3;17;run"), (h.RUN, b"refund")], _RUN)
@example(ID.encode(), [(h.SENT, b"5f")], {"name": "approval", "at": "2026-05-01T12:00:00+00:00"})
def test_a_record_is_what_the_join_agent_takes_it_for(
    key: bytes | None, headers: list[tuple[str, Any]], value: dict[str, Any]
) -> None:
    raw = json.dumps(value).encode()
    theirs = read(key, headers, raw, b"run")
    mine = read_join(Message(key, raw, headers), b"run", TOPIC_ID)
    match theirs:
        case Arrival(number=n, status=status, seq=seq):
            child = pack(child_id((key or b"").decode(), n))
            content = sha256(raw).digest()[:8]
            assert isinstance(mine, Arrived)
            assert mine[0] == child
            assert mine[2:] == (n, seq, status.value, content)
        case Expects(seq=seq, what=what):
            assert isinstance(mine, Expected)
            assert mine[1:] == (
                seq,
                what.stage,
                what.first,
                what.expected,
                what.rule,
                what.deadline_ms,
            )
        case Deadline(seq=seq):
            assert mine == (pack((key or b"").decode()), seq, Kind.TIMER)
        case Cancel(seq=seq):
            assert mine == (pack((key or b"").decode()), seq, Kind.CANCEL)
        case Reopen(seq=seq):
            assert mine == (pack((key or b"").decode()), seq, Kind.REDRIVE)
        case runs.Began(seq=seq, what=begins):
            assert mine == Began(pack((key or b"").decode()), seq, begins.stage)
        case runs.Fired(seq=seq, n=n):
            assert mine == Fired(pack((key or b"").decode()), seq, n)
        case runs.Sent(id=id, name=name):
            assert mine == Sent(pack((key or b"").decode()), id, name)
        case _:
            assert isinstance(mine, Claim)
            assert mine.kind is Kind.UNUSABLE


def test_a_tombstone_and_a_value_that_is_no_json_are_nothing_of_a_join() -> None:
    headers = [(h.HOP, b"3;17;run")]
    empty = read_join(Message(ID.encode(), None, headers), b"run", TOPIC_ID)
    broken = read_join(Message(ID.encode(), b"[", headers), b"run", TOPIC_ID)
    assert isinstance(empty, Claim)
    assert isinstance(broken, Claim)
    assert (empty.kind, broken.kind) == (Kind.TOMBSTONE, Kind.UNUSABLE)
    assert unpack(broken.job) != ID
