"""Goal: the handler of a join gets each branch once and in order, and is told when one is wrong.

Method: `streams.testing.joined` where a stage's own test would use it; rows as Postgres has them
for what must not happen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from schemas.state import JobError, Status
from streams import BadRecord, Context, Done, Emit, Fork, Joined, stage
from streams.joins import Branch, BranchRow, JoinRef
from streams.outcome import MAX_BRANCHES
from streams.testing import TRACE_ID, job_context, joined


class Piece(BaseModel):
    n: int


class Other(BaseModel):
    text: str


FAILED = JobError(kind="rejected", message="bad")


@stage("total", emits="done")
async def total(results: Joined[Piece], job: Context) -> Emit:
    return Emit("done", Piece(n=sum([piece.n async for piece in results])))


class Rows:
    """Rows as they are kept, in pages or not."""

    def __init__(self, rows: Sequence[BranchRow]) -> None:
        self._rows = rows

    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        for row in self._rows:
            yield row


def of(rows: Sequence[BranchRow], *, expected: int, first: int = 0, **counts: int) -> Joined[Piece]:
    done = sum(row.status is Status.DONE for row in rows)
    told = {"done": done, "failed": len(rows) - done, **counts}
    ref = JoinRef(parent=TRACE_ID, seq=3, first=first, expected=expected, **told)
    return Joined(ref, Piece, Rows(rows))


async def branches(results: Joined[Any]) -> list[Branch[Any]]:
    return [branch async for branch in results.branches()]


async def test_a_join_is_tested_by_a_call_and_a_comparison() -> None:
    assert await total(joined([Piece(n=1), Piece(n=2)]), job_context()) == Emit("done", Piece(n=3))


async def test_results_are_those_of_the_children_that_succeeded_in_their_order() -> None:
    results = joined([Piece(n=5), FAILED, Piece(n=3), None])
    assert [piece.n async for piece in results] == [5, 3]
    assert [piece.n async for piece in results] == [5, 3], "and again"
    assert (results.expected, results.done, results.failed, results.missing) == (4, 2, 1, 1)
    assert results.id == f"{TRACE_ID}:1"
    assert await branches(results) == [
        Branch(f"{TRACE_ID}/0", 0, result=Piece(n=5)),
        Branch(f"{TRACE_ID}/1", 1, error=FAILED),
        Branch(f"{TRACE_ID}/2", 2, result=Piece(n=3)),
        Branch(f"{TRACE_ID}/3", 3, missing=True),
    ]
    assert [branch.missing for branch in await branches(results)] == [False, False, False, True]


async def test_results_of_several_models_keep_their_own() -> None:
    results = joined([Piece(n=1), Other(text="x")], trace_id="a" * 32)
    assert [type(each) async for each in results] == [Piece, Other]
    assert results.ref.parent == "a" * 32


async def test_a_fork_into_nothing_joins_nothing() -> None:
    empty: Joined[Piece] = joined([])
    assert [piece async for piece in empty] == await branches(empty) == []
    lost: Joined[Piece] = joined([None, FAILED])
    assert [piece async for piece in lost] == []
    assert [branch.error for branch in await branches(lost)] == [None, FAILED]


@given(st.lists(st.sampled_from(["done", "failed", "missing"]), max_size=12), st.integers(0, 500))
async def test_every_branch_is_told_once_whatever_came(came: list[str], first: int) -> None:
    rows = [
        BranchRow(
            first + n,
            Status(status),
            Piece(n=n).model_dump_json().encode()
            if status == "done"
            else FAILED.model_dump_json().encode(),
        )
        for n, status in enumerate(came)
        if status != "missing"
    ]
    results = of(rows, expected=len(came), first=first)
    found = await branches(results)
    assert [b.number for b in found] == list(range(len(came)))
    assert [b.id for b in found] == [f"{TRACE_ID}/{first + n}" for n in range(len(came))]
    assert [
        "missing" if b.missing else "done" if b.error is None else "failed" for b in found
    ] == came
    assert [p.n async for p in results] == [n for n, s in enumerate(came) if s == "done"]
    assert results.missing == came.count("missing")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'{"n": "many"}', "n: Input should be a valid integer"),
        (b"7", "the whole: Input should be an object"),
        (b"{", "the whole: Invalid JSON"),
    ],
)
async def test_a_result_that_does_not_fit_is_named_and_not_quoted(value: bytes, says: str) -> None:
    results = of([BranchRow(7, Status.DONE, value)], expected=1, first=7)
    for read in (lambda: branches(results), lambda: anext(aiter(results))):
        with pytest.raises(BadRecord) as raised:
            await read()
        said = raised.value.message
        assert said.startswith(f"The result of {TRACE_ID}/7 does not fit join {TRACE_ID}:3: ")
        assert says in said
        assert "many" not in said


async def test_results_that_are_not_kept_any_more_are_no_short_list() -> None:
    kept = [BranchRow(0, Status.DONE, b'{"n": 1}')]
    short = of(kept, expected=3, done=2, failed=1)
    with pytest.raises(BadRecord, match="had 3 branches when it closed, and 1 are kept"):
        [piece async for piece in short]
    with pytest.raises(BadRecord, match="HANDOFF_RETENTION_MS"):
        await branches(short)


def test_a_fork_is_bounded() -> None:
    most = [Piece(n=0)] * MAX_BRANCHES
    assert len(Fork(most, join="total").children) == 10_000
    assert Fork([], join="total").on_missing == "wait"
    with pytest.raises(BadRecord, match=r"10,001 children; 10,000 are the most\. Fork into groups"):
        Fork([*most, Piece(n=0)], join="total")


async def test_another_outcome_of_a_join_is_its_own_affair() -> None:
    @stage("whole")
    async def whole(results: Joined[Piece], job: Context) -> Done:
        return Done() if results.missing else Done(Piece(n=results.done))

    assert await whole(joined([Piece(n=1), None]), job_context()) == Done()
    assert whole.joined is Piece
    assert whole.input is JoinRef
