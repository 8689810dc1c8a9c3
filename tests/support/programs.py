"""Orchestrations as data: made up by Hypothesis, played by one function.

A program is a sequence of statements. What it computes depends on results, never on the order in
which they come: it uses neither `first_of`, nor time-outs, nor the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Literal

from hypothesis import strategies as st
from pydantic import BaseModel

from schemas.state import Status, job_error
from streams import CallFailed, Done, Emit, Reject, Run, RunCancelled
from streams.orchestration.declare import Orchestration
from streams.orchestration.run import Pending

#: What a program may call.
STAGES = ("a", "b", "c")
SIGNALS = ("s", "t")

Kind = Literal[
    "call", "sleep", "signal", "start", "collect", "gather", "if", "loop", "try", "fail", "large"
]


class Op(BaseModel):
    """A statement: `name` of the stage or signal, `n` a number that it uses, `body` and `other`
    statements within it."""

    kind: Kind
    name: str = ""
    n: int = 0
    body: tuple[Op, ...] = ()
    other: tuple[Op, ...] = ()


class Program(BaseModel):
    """`end` is how it ends if nothing fails."""

    ops: tuple[Op, ...] = ()
    end: Literal["done", "emit", "reject"] = "done"


class Payload(BaseModel):
    """What a call hands over: all that the program knows by then."""

    n: int
    seen: int
    large: bool = False


class Result(BaseModel):
    seen: int


def _simple() -> st.SearchStrategy[Op]:
    small, stages = st.integers(0, 3), st.sampled_from(STAGES)
    return st.one_of(
        st.builds(Op, kind=st.just("call"), name=stages, n=small),
        st.builds(Op, kind=st.just("start"), name=stages, n=small),
        st.builds(Op, kind=st.just("signal"), name=st.sampled_from(SIGNALS)),
        st.builds(Op, kind=st.sampled_from(("sleep", "collect")), n=small),
    )


def _within(inner: st.SearchStrategy[Op]) -> st.SearchStrategy[Op]:
    some = st.lists(inner, max_size=3).map(tuple)
    plain = st.lists(_simple(), min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Op, kind=st.just("gather"), body=plain),
        st.builds(Op, kind=st.sampled_from(("if", "try")), body=some, other=some),
        st.builds(Op, kind=st.just("loop"), n=st.integers(1, 3), body=some),
    )


def ops(*, failing: bool = True) -> st.SearchStrategy[tuple[Op, ...]]:
    simple = _simple()
    if failing:
        simple |= st.builds(Op, kind=st.sampled_from(("fail", "large")))
    return st.lists(st.recursive(simple, _within, max_leaves=8), max_size=5).map(tuple)


def programs(*, failing: bool = True) -> st.SearchStrategy[Program]:
    ends = ("done", "emit", "reject") if failing else ("done", "emit")
    return st.builds(Program, ops=ops(failing=failing), end=st.sampled_from(ends))


@dataclass
class _Machine:
    run: Run
    seen: int = 0
    open: tuple[Pending[Any], ...] = ()

    def saw(self, value: object) -> None:
        known = f"{self.seen} {value}".encode()
        self.seen = int.from_bytes(blake2b(known, digest_size=3).digest())

    def begin(self, op: Op) -> Pending[Any]:
        match op.kind:
            case "sleep" | "collect":
                return self.run.sleep(timedelta(seconds=op.n))
            case "signal":
                return self.run.signal(op.name)
        return self.run.call(op.name, Payload(n=op.n, seen=self.seen), returns=Result)

    async def do(self, ops: Sequence[Op]) -> None:
        for op in ops:
            await self._one(op)

    async def _one(self, op: Op) -> None:
        match op.kind:
            case "start":
                self.open += (self.begin(op),)
            case "collect":
                pending, self.open = self.open[:1], self.open[1:]
                for each in pending:
                    self.saw(await each)
            case "gather":
                self.saw(await self.run.gather(*[self.begin(each) for each in op.body]))
            case "if":
                await self.do(op.body if self.seen % 2 else op.other)
            case "loop":
                for _ in range(op.n):
                    await self.do(op.body)
            case "try":
                await self._try(op)
            case "fail":
                raise ValueError(f"it fails after {self.seen}")
            case "large":
                await self.run.call("a", Payload(n=0, seen=self.seen, large=True))
            case _:
                self.saw(await self.begin(op))

    async def _try(self, op: Op) -> None:
        try:
            await self.do(op.body)
        except (CallFailed, ValueError, RunCancelled) as e:
            self.saw(e)
            await self.do(op.other)
            if isinstance(e, RunCancelled):
                raise


async def machine(program: Program, run: Run) -> Done | Emit | Reject:
    """Play a program."""
    state = _Machine(run)
    await state.do(program.ops)
    result = Result(seen=state.seen)
    if program.end == "reject":
        return Reject(f"after {state.seen}")
    return Done(result) if program.end == "done" else Emit("done", result)


MACHINE = Orchestration(machine, Program, STAGES)


def ended(stage: str, payload: bytes, dice: int) -> tuple[Status, bytes]:
    """How a call ends, whoever asks: by what it was handed alone. About one in four fails."""
    rolled = blake2b(b"%d %b %b" % (dice, stage.encode(), payload), digest_size=3).digest()
    if rolled[0] % 4 == 0:
        error = job_error("bad", f"{stage} says no to {rolled.hex()}")
        return Status.FAILED, error.model_dump_json().encode()
    return Status.DONE, b'{"seen":%d}' % int.from_bytes(rolled)
