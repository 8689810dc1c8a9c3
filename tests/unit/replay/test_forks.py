"""Goal: of two forks the very children are named that differ, and nothing is called the same that
was not compared."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import headers as h
from schemas.state import JOIN, Forked, JobError, Status
from streams import (
    BadRecord,
    BadWorld,
    Context,
    Done,
    Emit,
    Flow,
    Fork,
    Joined,
    Run,
    Wait,
    orchestrator,
    stage,
)
from streams.joins import BranchRow, JoinRef
from streams.replay.branches import KeptBranches
from streams.replay.bundle import bundle_of, read_bundle, write_bundle
from streams.replay.effects import RunEnded
from streams.replay.facts import Case
from streams.replay.forks import Handed, name_children
from streams.replay.paths import parse_path
from streams.replay.verdict import Came, Judged, Verdict, judge_case
from streams.runtime.delivery import Target
from streams.runtime.forks import Child, Split
from streams.signals import Signal
from tests.unit.replay.made import SETTINGS, Note, case, job, judged

V = Verdict
FORKED = {"status": Status.WAITING, "to": (JOIN,), "data": None}


def child(n: int, to: str = "read", text: str = "") -> Child:
    return Child(Target("", Status.RUNNING, orjson.dumps([to])), b"", handed(n, to, text).data)


def handed(n: int, to: str = "read", text: str = "") -> Handed:
    return Handed(to, Note(n=n, text=text).model_dump_json().encode())


def split(*children: Child, join: str = "merge", first: int = 0) -> Split:
    return Split(join, first, len(children), children)


def forked(now: Split) -> Forked:
    return Forked.model_validate_json(now.state())


@stage("read", emits=("keep", "read"), joins="merge")
def read(note: Note, _: Context) -> Fork:
    return Fork([Emit("read", Note(n=n, text=note.text)) for n in range(note.n)], join="merge")


@stage("keep")
def keep(note: Note, _: Context) -> Done:
    return Done(note)


@stage("merge")
async def merge(results: Joined[Note], _: Context) -> Done:
    try:
        return Done(Note(n=sum([note.n async for note in results])))
    except BadRecord:
        return Done(Note(n=-1))


flow = Flow("notes", (read, keep, merge))


def forking(n: int, was: Forked | None) -> Case:
    return replace(case(n, **FORKED), fork=was)


def test_the_same_fork_is_the_same_and_one_that_is_not_kept_is_unknown() -> None:
    was = forked(split(child(0), child(1)))
    same, gone = judged(flow, forking(2, was), forking(2, None))
    assert same.verdict is V.SAME
    assert (gone.verdict, gone.kind) == (V.UNKNOWN, "what it forked is not kept any more")


def test_join_number_and_content_are_compared() -> None:
    was = forked(split(child(0), child(5)))
    (found,) = judged(flow, forking(2, was))
    assert (found.verdict, found.kind) == (V.CHANGED, "fork.digest")
    assert found.split is not None
    (found,) = judged(flow, forking(3, was), ignored=[parse_path("fork.digest")])
    assert [(d.path, d.was, d.now) for d in found.differences] == [(("fork", "expected"), 2, 3)]
    elsewhere = forked(split(child(0), child(1), join="other"))
    (found,) = judged(flow, forking(2, elsewhere))
    assert found.kind == "fork.join: other → merge"


def test_a_fork_where_there_was_none_is_a_step_elsewhere() -> None:
    (found,) = judged(flow, case(2))
    assert found.kind == "status: running → waiting, to: keep → join"


def judged_fork(was: Split, now: Split, *, digest: bool = True) -> tuple[Judged, Forked]:
    """The verdict before children are compared; without `digest` it is not kept."""
    before = forked(was)
    before = before if digest else before.model_copy(update={"digest": ""})
    came = Came(Status.WAITING, (JOIN,), fork=now)
    return judge_case(forking(now.expected, before), came, ()), before


def test_children_are_compared_one_by_one() -> None:
    was = split(child(0), child(1), child(2))
    now = split(child(0), child(1, "keep"), child(2, text="x"))
    found, before = judged_fork(was, now)
    named = name_children(found, before, {n: handed(n) for n in range(3)}, ())
    assert [(d.path[2:], d.was, d.now) for d in named.differences] == [
        ((1, "to"), "read", "keep"),
        ((2, "data", "text"), "", "x"),
    ]
    assert named.message == "2 of 3 children are handed another thing."
    assert named.split is None
    ignored = [parse_path("fork.children[*].to"), parse_path("fork.children[*].data.text")]
    all_ = {n: handed(n) for n in range(3)}
    assert name_children(found, before, all_, ignored).verdict is V.SAME


def test_a_child_whose_record_is_gone_is_the_one_that_differs_or_nobody_knows() -> None:
    was, now = split(child(0), child(1)), split(child(0), child(9))
    found, before = judged_fork(was, now)
    named = name_children(found, before, {0: handed(0)}, ())
    assert (named.verdict, named.kind) == (V.CHANGED, "fork.digest")
    found, before = judged_fork(was, now, digest=False)
    named = name_children(found, before, {0: handed(0)}, ())
    assert named.verdict is V.UNKNOWN
    assert named.kind == "the hand-offs of 1 of its 2 children are not kept"
    named = name_children(found, before, {0: handed(0), 1: handed(1)}, ())
    assert named.kind == "fork.children[*].data.n"


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_all_that_differ_are_named_and_no_other(before: list[int], after: list[int]) -> None:
    was, now = split(*map(child, before)), split(*map(child, after))
    judged_, forked_ = judged_fork(was, now, digest=False)
    named = name_children(judged_, forked_, {n: handed(x) for n, x in enumerate(before)}, ())
    differ = {n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b}
    told = {d.path[2] for d in named.differences if d.path[1] == "children"}
    assert told == differ
    assert (named.verdict is V.SAME) == (before == after)


def test_of_many_differing_children_some_are_named_and_all_are_counted() -> None:
    was, now = (split(*(child(n + k) for n in range(50))) for k in (0, 1))
    found, before = judged_fork(was, now)
    named = name_children(found, before, {n: handed(n) for n in range(50)}, ())
    assert len(named.differences) == 20
    assert named.message.startswith("50 of 50")


REF = JoinRef(parent=job(1), seq=1, first=0, expected=3, done=2, failed=1)
ERROR = JobError(kind="rejected", message="secret")
ROWS = (
    BranchRow(0, Status.DONE, b'{"n":3,"text":"secret"}'),
    BranchRow(1, Status.FAILED, ERROR.model_dump_json().encode()),
    BranchRow(2, Status.DONE, b'{"n":4}'),
)


def joining(rows: tuple[BranchRow, ...]) -> Case:
    happened = case(1, stage="merge", status=Status.DONE, to=(), data='{"n":7,"text":""}', seq=3)
    assert happened.record is not None
    record = replace(happened.record, value_=REF.model_dump_json(by_alias=True).encode())
    return replace(happened, record=record, branches=rows)


def test_a_join_reads_what_it_was_given_and_is_unknown_where_that_is_gone() -> None:
    same, gone = judged(flow, joining(ROWS), joining(ROWS[:2]))
    assert same.verdict is V.SAME
    # However the handler took it.
    assert (gone.verdict, gone.kind) == (
        V.UNKNOWN,
        f"results of join {job(1)}:1 are not kept any more",
    )


class Away:
    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        raise BadWorld("Postgres is away.")
        yield ROWS[0]


async def test_a_database_that_is_away_is_kept_for_the_replay_to_raise() -> None:
    branches = KeptBranches(Away())
    with pytest.raises(BadWorld):
        [row async for row in branches.read(REF)]
    assert branches.fault is not None
    assert not issubclass(RunEnded, Exception), "no handler takes it for an error of its own"


def test_a_file_keeps_forks_and_results_and_hides_what_it_was_told_to(tmp_path: Path) -> None:
    was = forked(split(child(0), child(1)))
    cases = (forking(2, was), joining(ROWS))
    path = tmp_path / "job.json"
    path.write_bytes(write_bundle(bundle_of(job(2), flow, cases, SETTINGS)))
    assert read_bundle(path).cases == cases
    hide = [parse_path("data.text")]
    content = write_bundle(bundle_of(job(2), flow, cases, SETTINGS, hide))
    path.write_bytes(content)
    rows: Any = read_bundle(path).cases[1].branches
    assert [json.loads(row.value) for row in rows] == [
        {"n": 3, "text": "[redacted]"},
        {"kind": "rejected", "message": ""},
        {"n": 4},
    ]


@stage("ask", emits="keep", waits=("approval", "refusal"))
def ask(note: Note, job: Context) -> Wait | Emit:
    if job.signal is None:
        return Wait("refusal" if note.n else "approval")
    return Emit("keep", Note(n=note.n, text=str(job.signal.value)))


@orchestrator("lead", emits="keep")
async def lead(note: Note, run: Run) -> Emit:
    return Emit("keep", await run.call("keep", note, returns=Note))


waiting = Flow("notes", (*flow.stages, ask, lead), sinks=flow.sinks)


def began(n: int, stage_: str, begun: tuple[str, ...] | None) -> Case:
    return replace(case(n, stage=stage_, **FORKED), begun=begun)


@pytest.mark.parametrize(
    ("given_", "verdict", "kind"),
    [
        (began(0, "ask", ("signal approval",)), V.SAME, ""),
        (
            began(1, "ask", ("signal approval",)),
            V.CHANGED,
            "run.waits: signal approval → signal refusal",
        ),
        (began(0, "ask", None), V.UNKNOWN, "what it began is not kept any more"),
        (
            replace(began(0, "ask", None), fork=Forked(join="merge", first=0, expected=2)),
            V.CHANGED,
            "fork.join: merge → nothing",
        ),
        (
            began(2, "read", ("signal approval",)),
            V.CHANGED,
            "run.waits: signal approval → nothing",
        ),
        (began(3, "lead", ()), V.SAME, ""),
        (began(3, "lead", ("signal approval",)), V.CHANGED, "run.waits: signal approval → nothing"),
    ],
)
def test_what_began_a_wait_or_a_run_must_begin_the_same(
    given_: Case, verdict: Verdict, kind: str
) -> None:
    (found,) = judged(waiting, given_)
    assert (found.verdict, found.kind) == (verdict, kind)
    assert found.split is None
    bundle = bundle_of(job(0), waiting, [given_], SETTINGS)
    assert orjson.loads(write_bundle(bundle))["steps"][0].get("begun") == (
        None if given_.begun is None else list(given_.begun)
    )


def test_the_signal_that_a_stage_got_is_in_its_record() -> None:
    done = case(0, stage="ask", seq=4, data='{"n":0,"text":"True"}')
    assert done.record is not None
    signal = Signal("approval", value=True, by="ann").to_json()
    headers = ((h.SIGNAL, signal), *done.record.headers_)
    given_ = replace(done, record=replace(done.record, headers_=headers))
    (found,) = judged(waiting, given_)
    assert found.verdict is V.SAME


def test_what_a_signal_said_is_redacted_by_its_path() -> None:
    done = case(0, stage="ask", seq=4, data='{"n":0,"text":"True"}')
    assert done.record is not None
    signal = Signal("approval", value={"card": "4711"}, by="ann").to_json()
    given_ = replace(done, record=replace(done.record, headers_=((h.SIGNAL, signal),)))
    file = write_bundle(
        bundle_of(job(0), waiting, [given_], SETTINGS, [parse_path("signal.value")])
    )
    headers = orjson.loads(file)["steps"][0]["record"]["headers"]
    told = Signal.from_json(b64decode(headers[0][1]))
    assert (told.name, told.by) == ("approval", "ann")
    assert "4711" not in str(told.value)
