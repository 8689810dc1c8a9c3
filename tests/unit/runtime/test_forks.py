"""What a fork leads to: its records, their places in a trace, and its bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from schemas import headers as h
from schemas.ids import traceparent
from schemas.state import JobError, JobState, Status, job_error
from streams import Context, Done, Emit, Flow, Fork, Joined, Reject, stage
from streams.config import load_settings
from streams.errors import BadRecord, BadSetup
from streams.joins.wire import Arrival, Deadline, Expected, read
from streams.runtime import forks
from streams.runtime.delivery import Delivery
from streams.runtime.records import RecordWriter, now_us
from tests.unit.runtime.fakes import FakeMessage, delivery, make_tracker

JOB = f"{7:032x}"


class Part(BaseModel):
    n: int
    text: str = ""


@stage("split", emits=("part", "other", "out"), joins="whole")
def split(part: Part, _: Context) -> Fork:
    return Fork([], join="whole")


@stage("part")
def part(each: Part, _: Context) -> Done:
    return Done(each)


@stage("other")
def other(each: Part, _: Context) -> Done:
    return Done(each)


@stage("whole")
async def whole(parts: Joined[Part], _: Context) -> Done:
    return Done()


FLOW = Flow("forks", (split, part, other, whole), sinks=("out",))
SETTINGS = load_settings()
WRITER = RecordWriter(FLOW, split, SETTINGS, "0.test")
Headers = dict[str, bytes]


def arrived(key: str = JOB, *more: tuple[str, bytes]) -> Delivery:
    headers = [*more, (h.HOP, b"2;1700000000000000;forks")]
    d = delivery(make_tracker(), FakeMessage(b'{"n":1}', key.encode(), headers, 5))
    d.identify(b"forks")
    d.attempt, d.started_us = 1, d.polled_us
    assert d.fault is None
    return d


def written(d: Delivery, outcome: Any, writer: RecordWriter = WRITER) -> list[tuple[Any, ...]]:
    writer.conclude(d, outcome, now_us())
    return list(writer.records(d))


def test_a_fork_is_a_state_an_expectation_a_hand_off_for_each_child_and_a_timer() -> None:
    children = [Emit("part", Part(n=0)), Emit("other", Part(n=1)), Emit("part", Part(n=2))]
    d = arrived()
    state, expectation, *hand_offs, timer = written(
        d, Fork(children, join="whole", timeout=timedelta(seconds=9), on_missing="fail")
    )
    told = JobState.model_validate_json(state[2])
    assert (told.seq, told.status, told.to) == (3, Status.WAITING, ("join",))
    assert told.fork is not None
    assert (told.fork.join, told.fork.first, told.fork.expected) == ("whole", 0, 3)
    assert expectation[0] == "forks.join"
    found = read(expectation[1], expectation[3], expectation[2], b"forks")
    assert isinstance(found, Expected)
    assert (found.seq, found.what.expected, found.what.rule) == (3, 3, "fail")
    assert [(topic, key, orjson.loads(value)["n"]) for topic, key, value, _ in hand_offs] == [
        ("forks.part", f"{JOB}/0".encode(), 0),
        ("forks.other", f"{JOB}/1".encode(), 1),
        ("forks.part", f"{JOB}/2".encode(), 2),
    ]
    assert timer[0] == "timers"
    assert isinstance(read(timer[1], timer[3], timer[2], b"forks"), Deadline)
    assert (d.weight, d.held_bytes) == (5, sum(len(value) for _, _, value, _ in hand_offs))


def test_a_childs_first_step_hangs_below_the_hop_that_forked() -> None:
    *_, (_, key, value, headers) = written(arrived(), Fork([Emit("part", Part(n=0))], "whole"))
    assert dict(headers)[h.TRACEPARENT].decode() == traceparent(JOB, 3)
    child = delivery(make_tracker(), FakeMessage(value, key, headers, 6))
    child.identify(b"forks")
    assert (child.fault, child.job_id, child.seq, child.forked_at) == (None, f"{JOB}/0", 1, 3)
    assert not child.claimable
    child.attempt = 1
    state, arrival = written(child, Done(Part(n=5)))
    told = JobState.model_validate_json(state[2])
    assert (told.parent, told.forked_at, told.seq) == (JOB, 3, 1)
    assert (arrival[0], arrival[1], arrival[3][0]) == (
        "forks.join",
        JOB.encode(),
        (h.ARRIVAL, b"0;done;1"),
    )
    assert orjson.loads(arrival[2])["n"] == 5


@pytest.mark.parametrize(("outcome", "end"), [(Reject("no"), b"failed"), (Done(), b"done")])
def test_whatever_ends_a_child_is_told_to_its_join(outcome: Any, end: bytes) -> None:
    *_, arrival = written(arrived(f"{JOB}/4/12"), outcome)
    assert arrival[1] == f"{JOB}/4".encode()
    assert arrival[3][0] == (h.ARRIVAL, b"12;%b;3" % end)


def test_what_does_not_end_a_child_is_not() -> None:
    d = arrived(f"{JOB}/4")
    handed = written(d, Emit("part", Part(n=1)))
    assert [topic for topic, *_ in handed] == ["job-state", "forks.part"]
    d = arrived(f"{JOB}/4")
    WRITER.wait(d, job_error("later", "later"), now_us(), now_us())
    assert [topic for topic, *_ in WRITER.records(d)] == ["job-state", "timers"]


def test_children_are_counted_over_all_forks_of_a_job() -> None:
    d = arrived(JOB, (h.CHILDREN, b"40"))
    *_, (_, key, _, _) = written(d, Fork([Emit("part", Part(n=0))], "whole"))
    assert key == f"{JOB}/40".encode()
    (_, (_, _, _, headers)) = written(arrived(JOB, (h.CHILDREN, b"40")), Emit("part", Part(n=0)))
    assert headers[0] == (h.CHILDREN, b"40")


def test_children_of_a_rerun_with_the_same_effects_stand_for_the_originals() -> None:
    original = f"{9:032x}"
    d = arrived(JOB, (h.KEYS_OF, original.encode()))
    _, expectation, (_, _, _, headers) = written(d, Fork([Emit("part", Part(n=0))], "whole"))
    assert dict(headers)[h.KEYS_OF].decode() == f"{original}/0"
    assert orjson.loads(expectation[2])["keysOf"] == original


def test_a_shield_goes_on_with_hand_offs_children_timers_and_what_the_fork_expects() -> None:
    call = f"{JOB}/3"
    shield = (h.SHIELDED, call.encode())
    d = arrived(call, shield)
    state, expectation, (_, key, value, headers) = written(
        d, Fork([Emit("part", Part(n=0))], "whole")
    )
    assert orjson.loads(state[2])["shielded"] == call
    assert orjson.loads(expectation[2])["shielded"] == call
    child = delivery(make_tracker(), FakeMessage(value, key, headers))
    child.identify(b"forks")
    assert (child.shielded, child.forked_at, child.fault) == (call, 3, None)
    _, (_, _, _, headers) = written(d, Emit("part", Part(n=0)))
    assert shield in headers
    WRITER.wait(d, JobError(kind="retry", message="once more"), now_us(), now_us())
    assert shield in WRITER.records(d)[1][3]


@pytest.mark.parametrize(("ordered", "named"), [(JOB, JOB), (f"{JOB}/3", None)])
def test_a_branch_says_to_its_join_with_whom_it_was_cancelled(
    ordered: str, named: str | None
) -> None:
    d = arrived(f"{JOB}/3")
    WRITER.cancel(d, JobError(kind="cancelled", message="Cancelled."), ordered, now_us())
    state, (_, key, value, headers) = WRITER.records(d)
    assert orjson.loads(state[2])["status"] == "cancelled"
    found = read(key, headers, value or b"", b"forks")
    assert isinstance(found, Arrival)
    assert (found.status.value, found.ancestor) == ("cancelled", named)


@pytest.mark.parametrize(
    ("fork", "key", "error", "says"),
    [
        (Fork([], "nowhere"), JOB, BadSetup, "to be joined by nowhere"),
        (Fork([Emit("out", Part(n=0))], "whole"), JOB, BadSetup, "into the sink"),
        (Fork([Part(n=0)], "whole"), JOB, BadSetup, "exactly one `emits`"),
        (Fork([Emit("part", Part(n=0))], "whole"), JOB + "/1" * 8, BadRecord, "8 times over"),
        (Fork([Emit("part", Part(n=0))] * 9_000, "whole"), JOB, BadRecord, "100,000 children"),
    ],
    ids=["join", "sink", "plain", "deep", "many"],
)
def test_a_fork_that_cannot_be_is_refused_with_a_sentence(
    fork: Fork, key: str, error: type[Exception], says: str
) -> None:
    d = arrived(key, *([(h.CHILDREN, b"95000")] if "100,000" in says else []))
    with pytest.raises(error, match=says):
        WRITER.conclude(d, fork, now_us())
    assert d.result is None
    assert d.held_bytes == 0


def test_a_fork_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "MAX_FORK_BYTES", 1_000)
    large = Emit("part", Part(n=0, text="x" * 300))
    assert len(written(arrived(), Fork([large] * 3, "whole"))) == 5
    with pytest.raises(BadRecord, match=r"The first 4 of 5 children .* the limit of one fork"):
        WRITER.conclude(arrived(), Fork([large] * 5, "whole"), now_us())
