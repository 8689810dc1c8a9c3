"""Declaring stages and flows: what a stage author writes, checked before anything starts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar, get_args, get_type_hints, overload

from pydantic import BaseModel

from streams.context import Context
from streams.errors import BadSetup
from streams.retry import Backoff

In = TypeVar("In", bound=BaseModel)
Out = TypeVar("Out")

AnyHandler = Callable[[Any, Context], Any]


@dataclass(frozen=True)
class Stage(Generic[In, Out]):
    """One stage: a handler and what the runtime must know about it. Calling it calls the handler.

    `emits` names the stages and sinks that it may hand to; a plain model goes to the only one.
    `concurrency` bounds the async handlers that run at once in one worker, `timeout` each run.
    `prepare` runs once in each worker, before the first record: to load models and tables.
    """

    name: str
    handler: Callable[[In, Context], Out]
    input: type[In]
    output: type[BaseModel] | None
    emits: tuple[str, ...] = ()
    concurrency: int = 64
    timeout: timedelta = timedelta(minutes=5)
    retry: Backoff = field(default_factory=Backoff)
    prepare: Callable[[], None] | None = None

    def __call__(self, model: In, job: Context) -> Out:
        return self.handler(model, job)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)


class stage:
    """Declare a stage: `@stage("classify", emits="enrich", concurrency=64)`.

    The decorated function takes one pydantic model and a `Context`, both annotated, and returns an
    outcome (see `streams.outcome`) or a model. It stays callable as it was.
    """

    def __init__(
        self,
        name: str,
        *,
        emits: str | tuple[str, ...] = (),
        concurrency: int = 64,
        timeout: timedelta = timedelta(minutes=5),
        retry: Backoff | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        if not name.isidentifier() or not name.islower():
            raise BadSetup(f"A stage's name is a lower-case identifier; {name!r} is not.")
        if concurrency < 1:
            raise BadSetup(f"Stage {name}: concurrency must be at least 1, not {concurrency}.")
        self._name = name
        self._emits = (emits,) if isinstance(emits, str) else tuple(emits)
        self._concurrency = concurrency
        self._timeout = timeout
        self._retry = retry or Backoff()
        self._prepare = prepare

    @overload
    def __call__(
        self, handler: Callable[[In, Context], Awaitable[Any]]
    ) -> Stage[In, Awaitable[Any]]: ...
    @overload
    def __call__(self, handler: Callable[[In, Context], Out]) -> Stage[In, Out]: ...
    def __call__(self, handler: Callable[[In, Context], Any]) -> Stage[In, Any]:
        takes, returns = _signature(self._name, handler)
        return Stage(
            name=self._name,
            handler=handler,
            input=takes,
            output=returns,
            emits=self._emits,
            concurrency=self._concurrency,
            timeout=self._timeout,
            retry=self._retry,
            prepare=self._prepare,
        )


def _signature(name: str, handler: AnyHandler) -> tuple[type[Any], type[BaseModel] | None]:
    hints = get_type_hints(handler)
    returns = hints.pop("return", None)
    takes = next(iter(hints.values()), None)
    if not (isinstance(takes, type) and issubclass(takes, BaseModel)):
        raise BadSetup(
            f"Stage {name}: the handler's first parameter must be annotated with a pydantic model."
        )
    models = [
        t
        for t in get_args(returns) or (returns,)
        if isinstance(t, type) and issubclass(t, BaseModel)
    ]
    if len(models) > 1:
        names = ", ".join(m.__name__ for m in models)
        raise BadSetup(f"Stage {name} returns several models ({names}); use Emit for each.")
    return takes, models[0] if models else None


@dataclass(frozen=True)
class Flow:
    """A set of stages that fit together; `sinks` are topics that other programs read results from.

    Raises `BadSetup` when an `emits` names nothing, types do not fit, or a name is taken twice.
    """

    name: str
    stages: tuple[Stage[Any, Any], ...]
    sinks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not self.name.islower():
            raise BadSetup(f"A flow's name is a lower-case identifier; {self.name!r} is not.")
        names = [s.name for s in self.stages] + list(self.sinks)
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise BadSetup(f"Flow {self.name}: the name {twice[0]} is used twice.")
        for each in self.stages:
            self._check(each)

    def _check(self, each: Stage[Any, Any]) -> None:
        by_name = {s.name: s for s in self.stages}
        for target in each.emits:
            if target not in by_name and target not in self.sinks:
                raise BadSetup(
                    f"Stage {each.name} emits to {target}, which is no stage or sink of flow "
                    f"{self.name}."
                )
        if each.output is None:
            return
        if len(each.emits) != 1:
            raise BadSetup(
                f"Stage {each.name} returns a plain {each.output.__name__}, so it needs exactly "
                f"one `emits`; it has {len(each.emits)}."
            )
        target_stage = by_name.get(each.emits[0])
        if target_stage is not None and not issubclass(each.output, target_stage.input):
            raise BadSetup(
                f"Stage {each.name} emits {each.output.__name__}, but {target_stage.name} takes "
                f"{target_stage.input.__name__}."
            )

    def stage(self, name: str) -> Stage[Any, Any]:
        """The stage called `name`. Raises `BadSetup` with the names that exist."""
        for each in self.stages:
            if each.name == name:
                return each
        known = ", ".join(s.name for s in self.stages)
        raise BadSetup(f"Flow {self.name} has no stage {name}; it has {known}.")

    @property
    def entry(self) -> Stage[Any, Any]:
        """The first stage: where `submit` sends jobs."""
        return self.stages[0]
