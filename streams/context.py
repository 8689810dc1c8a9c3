"""What a handler is given beside its input: who the job is, and the ledger's `effect`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from schemas.ids import traceparent
from schemas.usage import Usage
from streams.signals import Signal
from streams.usage import Tally

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Happened(Generic[T]):
    """The target knows the effect; `result` is what its function would have returned."""

    result: T


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The target does not know the effect, and no call under way can bring it about any more."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The target cannot tell; a person must. `reason` is for that person."""

    reason: str


#: What a `reconcile=` function answers.
Reconciled = Happened[T] | DidNotHappen | Unknown


@dataclass(frozen=True, slots=True)
class EffectCall:
    """One request to do an effect. `fn` is called as `fn(*args, idempotency_key=key, **kwargs)`."""

    key: str
    name: str
    trace_id: str
    flow: str
    stage: str
    fn: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    idempotent: bool
    #: Called like `fn`: asks the target whether the effect of this key happened.
    reconcile: Callable[..., Awaitable[Reconciled[Any]]] | None = None


class EffectRunner(Protocol):
    """Runs effects once: the ledger in production, a recorder in `streams.testing`."""

    async def run(self, call: EffectCall) -> Any:
        """The effect's result, or its stored result.

        Raises `EffectParked` (ask a person), `BadWorld` (try later), or whatever `fn` raised.
        """
        ...


class Counted(Protocol):
    """What lives longer than one run, and keeps what all of its runs have spent on models."""

    usage: Tally | None


class Context:
    """One job at one stage, for one run of its handler.

    `trace_id` (32 hex digits, `/n` added for children), `flow`, `stage`, `seq` (the step that this
    run will write), `attempt` (from 1), `keys_of` (the job under whose keys its effects are done:
    itself, or the original of a rerun with the same effects), `signal` (what ended the wait that
    the job comes from, if any; see `streams.outcome.Wait`).
    """

    __slots__ = (
        "_counted",
        "_effects",
        "attempt",
        "flow",
        "keys_of",
        "seq",
        "signal",
        "stage",
        "trace_id",
    )

    def __init__(
        self,
        trace_id: str,
        flow: str,
        stage: str,
        seq: int,
        attempt: int,
        effects: EffectRunner,
        keys_of: str | None = None,
        signal: Signal | None = None,
        counted: Counted | None = None,
    ) -> None:
        self.trace_id = trace_id
        self.signal = signal
        self.keys_of = keys_of or trace_id
        self.flow = flow
        self.stage = stage
        self.seq = seq
        self.attempt = attempt
        self._effects = effects
        self._counted = counted

    @property
    def traceparent(self) -> str:
        """The W3C context of this hop, for calls that no instrumentation sees."""
        return traceparent(self.trace_id, self.seq)

    def effect_key(self, name: str) -> str:
        """The idempotency key of this job's effect `name`: the same on every retry and redrive, and
        on a rerun with `--effects same`."""
        # The third part counts the visits of a flow that loops back to a stage.
        return f"{self.keys_of}:{self.stage}:0:{name}"

    @property
    def usage(self) -> Usage:
        """What models have cost this delivery until now: this run, and those before it."""
        counted = self._counted
        return Usage() if counted is None or counted.usage is None else counted.usage.usage

    def count_usage(
        self,
        *,
        request_model: str,
        response_model: str | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        operation: str = "chat",
        cached: bool = False,
    ) -> None:
        """Count one answer of a model; the arguments are OpenTelemetry's `gen_ai.operation.name`,
        `gen_ai.request.model` and so on. `cached`: it came from the ledger and cost nothing.

        `streams.models` does it by itself. The step that this delivery ends in, be it a wait for a
        timer or a dead letter, tells the sum of all its runs. What a run spent whose process died
        before that is not counted.
        """
        counted = self._counted
        if counted is None:
            return
        if counted.usage is None:
            counted.usage = Tally()
        counted.usage.count(
            operation, request_model, response_model, input_tokens, output_tokens, cached=cached
        )

    async def effect(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        idempotent: bool = False,
        reconcile: Callable[..., Awaitable[Reconciled[T]]] | None = None,
        **kwargs: Any,
    ) -> T:
        """Do a side effect once: claim, call `fn(*args, idempotency_key=…, **kwargs)`, settle.

        The result is stored as JSON and read back by `fn`'s return annotation, so a redelivery gets
        the stored result and `fn` is not called. The same name with other arguments parks the job.
        After a crash between the call and its settlement the outcome is unknown, and so it is when
        `fn` raises anything but `EffectNotDone` or `BadRecord`. With `idempotent=True` (the target
        honours the key) it is repeated. Else `reconcile`, called as `fn` is, asks the target:
        `Happened(result)` is the result; after `DidNotHappen()` `fn` is called again, which is
        right only if no earlier call can still come through; `Unknown(reason)`, or an exception
        that is no `BadWorld`, leaves the effect in doubt, as there being no `reconcile` does: the
        job is parked and listed by `handoff effects ls --in-doubt`.

        Raises `EffectParked`, `BadWorld`, or what `fn` raised; let all of them pass.
        """
        call = EffectCall(
            self.effect_key(name),
            name,
            # The row belongs to the job that its key names: a later rerun or redrive finds it so.
            self.keys_of,
            self.flow,
            self.stage,
            fn,
            args,
            kwargs,
            idempotent,
            reconcile,
        )
        result: T = await self._effects.run(call)
        return result
