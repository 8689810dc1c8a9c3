"""For tests of stages: a job context whose effects are recorded, without a broker or a database.

job = job_context()
outcome = classify(Mail(subject="Hello", body="…"), job)

outcome = await digest(joined([Summary(n=1), Summary(n=2)]), job_context())

effects = RecordedEffects(results={"ticket": DeskAnswer(number="T-1")})
outcome = await act(mail, job_context(effects=effects))
assert [call.name for call in effects.calls] == ["ticket"]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from pydantic import BaseModel

from schemas.state import JobError, Status
from streams.context import Context, DidNotHappen, EffectCall, EffectRunner, Happened, Unknown
from streams.errors import BadRecord, BadWorld, EffectNotDone, EffectParked
from streams.joins import BranchRow, Joined, JoinRef
from streams.usage import Tally

T = TypeVar("T", bound=BaseModel)

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@dataclass
class RecordedEffects:
    """Effects as the ledger runs them, in memory: once per key.

    Without `results` an effect's function is called with its key, as in production. With `results`
    the named effects give that value, or raise it if it is an exception, and nothing is called.
    What an effect raises is not kept: the next call with its key runs again. A `reconcile` function
    is asked as in production: where a call of unknown outcome raised, and about effects in `died`.
    """

    results: Mapping[str, Any] = field(default_factory=dict)
    #: Names of effects that an earlier attempt called, and died before it knew the outcome.
    died: Collection[str] = ()
    #: Every request for an effect, in order; repeats too.
    calls: list[EffectCall] = field(default_factory=list)
    #: The result of each key that has one.
    settled: dict[str, Any] = field(default_factory=dict)

    async def run(self, call: EffectCall) -> Any:
        self.calls.append(call)
        if call.key not in self.settled:
            self.settled[call.key] = await self._do(call)
        return self.settled[call.key]

    async def _do(self, call: EffectCall) -> Any:
        if call.name in self.died and not call.idempotent:
            answer = await _reconciled(call)
            if isinstance(answer, Happened):
                return answer.result
        try:
            return await self._call(call)
        except (BadRecord, EffectNotDone):
            raise
        except Exception:
            if call.idempotent or call.reconcile is None:
                raise
            answer = await _reconciled(call)
            if isinstance(answer, Happened):
                return answer.result
            raise

    async def _call(self, call: EffectCall) -> Any:
        if call.name in self.results:
            result = self.results[call.name]
            if isinstance(result, BaseException):
                raise result
            return result
        return await call.fn(*call.args, idempotency_key=call.key, **call.kwargs)


async def _reconciled(call: EffectCall) -> Happened[Any] | DidNotHappen:
    why = "it has no reconcile function"
    if call.reconcile is not None:
        try:
            answer = await call.reconcile(*call.args, idempotency_key=call.key, **call.kwargs)
        except BadWorld:
            raise
        except Exception as e:
            answer = Unknown(f"its reconcile function raised {type(e).__name__}")
        if not isinstance(answer, Unknown):
            return answer
        why = answer.reason
    raise EffectParked(
        f"Effect {call.name} may or may not have happened: {why}.", kind="in_doubt", key=call.key
    )


class _Counted:
    usage: Tally | None = None


def job_context(
    flow: str = "test",
    stage: str = "test",
    *,
    trace_id: str = TRACE_ID,
    seq: int = 1,
    attempt: int = 1,
    effects: EffectRunner | None = None,
) -> Context:
    """A context as the runtime gives it; `effects` defaults to a fresh `RecordedEffects`. What it
    counted of models is `job.usage`."""
    return Context(
        counted=_Counted(),
        trace_id=trace_id,
        flow=flow,
        stage=stage,
        seq=seq,
        attempt=attempt,
        effects=effects if effects is not None else RecordedEffects(),
    )


class _Listed:
    """Branches from a list, as a join reads them."""

    def __init__(self, rows: Sequence[BranchRow]) -> None:
        self._rows = rows

    async def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        for row in self._rows:
            yield row


def joined(results: Sequence[T | JobError | None], *, trace_id: str = TRACE_ID) -> Joined[T]:
    """What the handler of a join is given: a result or an error for each branch of a fork, None for
    one that has not come. Without any result it must not be asked for one."""
    rows = [_row(n, each) for n, each in enumerate(results) if each is not None]
    done = sum(row.status is Status.DONE for row in rows)
    ref = JoinRef(
        parent=trace_id,
        seq=1,
        first=0,
        expected=len(results),
        done=done,
        failed=len(rows) - done,
    )
    models = {type(x) for x in results if x is not None and not isinstance(x, JobError)}
    model: Any = reduce(or_, models) if models else BaseModel
    return Joined(ref, model, _Listed(rows))


def _row(n: int, each: BaseModel) -> BranchRow:
    status = Status.FAILED if isinstance(each, JobError) else Status.DONE
    return BranchRow(n, status, each.model_dump_json(by_alias=True).encode())
