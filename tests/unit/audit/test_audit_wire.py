"""The audit reads records and states by itself: it must read them as worker and projector do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import headers as h
from schemas.ids import is_job_id
from schemas.state import JobState
from streams.audit.states import quick_state, slow_state
from streams.audit.wire import Kind, forked_by, identify, pack, read_timer, unpack
from streams.orchestration.execution import describe
from streams.orchestration.run import Command
from streams.runtime.delivery import Delivery
from streams.runtime.tracker import Tracker
from streams.state.fold import Rejected, StateRecord

TOPIC_ID = UUID(int=7)
ID = "00000000000000000000000000000abc"


@dataclass
class Message:
    """A consumed record."""

    raw_key: bytes | None
    raw_value: bytes | None
    raw_headers: list[tuple[str, Any]] = field(default_factory=list)

    def topic(self) -> str:
        return "run.work"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 5

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def headers(self) -> list[tuple[str, Any]]:
        return self.raw_headers

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_000)

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return 0


_KEYS = st.sampled_from(
    [None, b"", ID.encode(), ID.upper().encode(), b"0" * 32, f"{ID}/2".encode(), b"order\xff"]
)
_NUMBERS = st.sampled_from(
    [b"", b"0", b"1", b"7", b"-3", b" 4", b"+5", b"2147483645", b"2147483646", b"99999999999", b"x"]
)
_FLOWS = st.sampled_from([b"run", b"mail", b"", None])
_HOPS = st.builds(lambda n, f: b"%b;1700000000000000;%b" % (n, f or b""), _NUMBERS, _FLOWS)
_HEADERS = st.lists(
    st.one_of(
        st.tuples(st.just(h.HOP), st.one_of(_HOPS, st.none(), st.just(b"1;2"))),
        st.tuples(st.just(h.SEQ), st.one_of(_NUMBERS, st.none())),
        st.tuples(st.just(h.FLOW), _FLOWS),
        st.tuples(st.just(h.REDRIVE), st.just(b"run.work.dlq/0/1")),
        st.tuples(st.just(h.KEYS_OF), st.sampled_from([ID.encode(), b"order\xff", b"", None])),
        st.tuples(st.just(h.SHIELDED), st.sampled_from([ID.encode(), b"order\xff", None])),
        st.tuples(st.just(h.CANCEL), st.sampled_from([ID.encode(), b"order\xff", b"", None])),
        st.tuples(st.just(h.FORK), _NUMBERS),
        st.tuples(st.just(h.CHILDREN), _NUMBERS),
        st.tuples(st.just(h.TRACEPARENT), st.just(b"00-x-y-01")),
        st.tuples(st.text(max_size=3), st.binary(max_size=3)),
    ),
    max_size=6,
)


@settings(max_examples=300)
@given(_KEYS, st.sampled_from([None, b"", b"{}"]), _HEADERS)
def test_a_record_is_of_the_job_and_step_that_the_worker_takes_it_for(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, Any]]
) -> None:
    message = Message(key, value, headers)
    tracker = Tracker(
        topic="run.work", topic_id=TOPIC_ID, partition=2, head=0, metadata="", finished=()
    )
    worker = Delivery(message, tracker, 0, 0)
    worker.identify(b"run")
    claim = identify(message, b"run", TOPIC_ID)
    assert (unpack(claim.job), claim.seq + 1) == (worker.job_id, worker.seq)
    if value is None:
        assert claim.kind is Kind.TOMBSTONE
    elif worker.fault is not None:
        assert claim.kind is Kind.UNUSABLE
    elif worker.is_new_job:
        assert claim.kind is Kind.SUBMISSION
    elif worker.claimable:
        assert claim.kind is (Kind.CANCEL if worker.cancelled_with else Kind.REDRIVE)
    elif worker.seq == 1:
        assert claim.kind is Kind.BRANCH
        assert forked_by(message) == worker.forked_at
    else:
        assert claim.kind is Kind.HAND_OFF


def test_a_returned_timer_is_told_from_a_hand_off() -> None:
    headers = [("handoff_timer", b"retry"), (h.SEQ, b"3"), (h.FLOW, b"run")]
    back = Message(ID.encode(), b"{}", [*headers, ("handoff_attempt", b"2")])
    assert identify(back, b"run", TOPIC_ID) == (pack(ID), 3, Kind.TIMER)
    bad = Message(ID.encode(), b"{}", [*headers, ("handoff_attempt", b"two")])
    assert identify(bad, b"run", TOPIC_ID).kind is Kind.UNUSABLE


def test_a_timer_is_read_and_what_is_none_is_not() -> None:
    headers = [("handoff_due", b"1700000000000"), ("handoff_return", b"run.work"), (h.SEQ, b"3")]
    assert read_timer(Message(ID.encode(), b"{}", headers)) == (
        (pack(ID), 3, 1_700_000_000_000, "run.work", None)
    )
    of_a_run = read_timer(Message(ID.encode(), b"{}", [*headers, (h.COMMAND, b"4")]))
    assert of_a_run is not None
    assert of_a_run.command == 4
    for n in range(len(headers)):
        assert read_timer(Message(ID.encode(), b"{}", headers[:n] + headers[n + 1 :])) is None
    assert read_timer(Message(b"x", b"{}", headers)) is None


@given(st.from_regex(r"\A[0-9a-f]{32}(/[0-9]{1,5}){0,3}\Z"))
def test_ids_survive_packing_and_keep_their_order(text: str) -> None:
    if is_job_id(text):
        assert unpack(pack(text)) == text
        assert pack(text) < pack(f"{text}/1")


_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
_TEXT = st.one_of(st.text(max_size=6), st.just("a\0b"))
_US = st.integers(-1, 253_402_300_800_000_000)
_STATE = st.fixed_dictionaries(
    {
        "traceId": st.sampled_from([ID, f"{ID}/3", "x"]),
        "flow": _TEXT,
        "stage": _TEXT,
        "status": st.sampled_from(["running", "waiting", "failed", "done", "lost"]),
        "seq": st.sampled_from([1, 2, 0, 2**31, "3", 1.0, True]),
        "attempts": st.sampled_from([0, 1, -1, 2**31, "1"]),
        "updatedAt": st.sampled_from(
            [
                "2026-05-01T12:00:00Z",
                "2026-05-01T12:00:00.123Z",
                "2026-05-01T12:00:00.123456Z",
                "2026-05-01T12:00:00.1234567Z",
                "2026-05-01T12:00:00+02:00",
                "2026-05-01T12:00:00",
                "2026-W05-1T12:00:00Z",
                "2026-13-01T12:00:00Z",
                1_700_000_000,
            ]
        ),
    },
    optional={
        "v": st.sampled_from([1, 2, True, "1"]),
        "data": _JSON,
        "to": st.one_of(st.lists(_TEXT, max_size=2), st.none(), st.just("done")),
        "parent": st.one_of(st.none(), _TEXT, st.just(3)),
        "worker": st.one_of(st.none(), _TEXT),
        "link": st.one_of(st.none(), _TEXT, st.just(1)),
        "forkedAt": st.sampled_from([None, 1, "1", 1.0, True]),
        "fork": st.one_of(
            st.none(),
            st.just({}),
            st.fixed_dictionaries(
                {
                    "join": _TEXT,
                    "first": st.sampled_from([0, 7, -1, "1", 2**31]),
                    "expected": st.sampled_from([0, 50, -1, 1.0]),
                },
                optional={"digest": st.one_of(_TEXT, st.none())},
            ),
        ),
        "run": st.one_of(
            st.none(),
            st.just({}),
            st.fixed_dictionaries(
                {"stage": _TEXT, "first": st.sampled_from([0, 7, -1, "1", 2**31])},
                optional={
                    "calls": st.sampled_from([[], ["score"], [1], None, "score"]),
                    "waits": st.sampled_from([[], ["sleep until 2026-05-01T12:00:00Z"], [3]]),
                    "ended": st.sampled_from([True, False, 1, None]),
                    "digest": st.one_of(_TEXT, st.none()),
                },
            ),
        ),
        "usage": st.one_of(st.none(), st.dictionaries(_TEXT, _JSON, max_size=2), st.just([])),
        "error": st.one_of(
            st.none(), st.fixed_dictionaries({"kind": _TEXT, "message": _TEXT}), st.just({})
        ),
        "timing": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                dict.fromkeys(("bornUs", "producedUs", "polledUs", "startedUs", "finishedUs"), _US)
            ),
        ),
        "consumed": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "topic": _TEXT,
                    "topicId": st.sampled_from([str(TOPIC_ID), TOPIC_ID.hex, "x"]),
                    "partition": st.sampled_from([0, 3, -1, 2**31]),
                    "offset": st.sampled_from([0, 2**63 - 1, 2**63, "1"]),
                }
            ),
        ),
    },
)


@settings(max_examples=300)
@given(_STATE, st.sampled_from([ID.encode(), f"{ID}/3".encode(), None, b"x"]))
def test_what_is_taken_apart_by_hand_is_what_the_fold_says(
    state: dict[str, Any], key: bytes | None
) -> None:
    try:
        value = orjson.dumps(state)
    except TypeError:
        # Integers beyond 64 bits: another spelling.
        import json

        value = json.dumps(state).encode()
    quick = quick_state(key, value)
    slow = slow_state(StateRecord("s", TOPIC_ID, 0, 0, 1, key, value), value)
    assert quick is None or quick == slow


@pytest.mark.parametrize("job", [ID, f"{ID}/3/77"])
def test_the_usual_state_needs_no_second_reading(job: str) -> None:
    state = JobState.model_validate(
        {
            "traceId": job,
            "fork": {"join": "merge", "first": 3, "expected": 50, "digest": "ab"},
            "run": {
                "stage": "refund",
                "first": 2,
                "calls": ["score", "book"],
                "waits": [
                    describe(Command(0, kind, name, due_us))
                    for kind in ("sleep", "signal")
                    for name in ["" if kind == "sleep" else "approval until noon"]
                    for due_us in (None, 1_777_636_800_000_000)
                ],
            },
            "flow": "run",
            "stage": "work",
            "status": "failed",
            "seq": 2,
            "data": {"n": 1, "x": 0.1, "text": "ü\n"},
            "attempts": 1,
            "updatedAt": "2026-05-01T12:00:00.123Z",
            "to": ["done"],
            "error": {"kind": "a", "message": "b"},
            "timing": dict.fromkeys(
                ("bornUs", "producedUs", "polledUs", "startedUs", "finishedUs"), 5
            ),
            "consumed": {
                "topic": "run.work",
                "topicId": str(TOPIC_ID),
                "partition": 1,
                "offset": 9,
            },
        }
    )
    value = state.model_dump_json(by_alias=True).encode()
    quick = quick_state(job.encode(), value)
    assert quick is not None
    assert quick.fork == ("merge", 3, 50)
    waits = (("", False), ("", True), ("approval until noon", False), ("approval until noon", True))
    assert quick.run == ("refund", 2, 2, waits, False)
    assert quick.consumed == (str(TOPIC_ID), 1, 9)
    record = StateRecord("s", TOPIC_ID, 0, 0, 1, job.encode(), value)
    assert slow_state(record, value) == quick
    assert isinstance(slow_state(record, b"{}"), Rejected)
