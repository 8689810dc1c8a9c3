"""Declaring stages and flows: what a stage author writes, checked before anything starts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

from pydantic import BaseModel

from schemas.state import JOIN
from streams.context import Context
from streams.edges import check_edges
from streams.errors import BadSetup
from streams.joins.joined import Joined, JoinRef
from streams.limits.limit import Limit, check_same, checked
from streams.retry import Backoff

#: What a handler takes: a model, or what a join gives it.
In = TypeVar("In", bound=BaseModel | Joined[Any])
Out = TypeVar("Out")

AnyHandler = Callable[[Any, Context], Any]


@dataclass(frozen=True)
class Stage(Generic[In, Out]):
    """One stage: a handler and what the runtime must know about it. Calling it calls the handler.

    `emits` names the stages and sinks that it may hand to; a plain model goes to the only one.
    `concurrency` bounds the async handlers that run at once in one worker, `timeout` each run.
    `prepare` runs once in each worker, before the first record: to load models and tables.
    `joins` names the stages that its forks join into. A stage that takes `Joined[T]` has T as
    `joined`; its input is then the reference to a join. `waits` names the signals that its `Wait`s
    wait for; `calls` the stages that an orchestration calls, `orchestrates` its function. `limits`
    hold over all workers.
    """

    name: str
    handler: Callable[[In, Context], Out]
    input: type[BaseModel]
    output: type[BaseModel] | None
    emits: tuple[str, ...] = ()
    concurrency: int = 64
    timeout: timedelta = timedelta(minutes=5)
    retry: Backoff = field(default_factory=Backoff)
    prepare: Callable[[], None] | None = None
    joins: tuple[str, ...] = ()
    joined: type[BaseModel] | None = None
    waits: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    orchestrates: Callable[[Any, Any], Coroutine[Any, Any, Any]] | None = None
    limits: tuple[Limit, ...] = ()

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
        joins: str | tuple[str, ...] = (),
        waits: str | tuple[str, ...] = (),
        limits: Limit | tuple[Limit, ...] = (),
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
        self._joins = (joins,) if isinstance(joins, str) else tuple(joins)
        self._waits = (waits,) if isinstance(waits, str) else tuple(waits)
        self._limits = limits

    @overload
    def __call__(
        self, handler: Callable[[In, Context], Awaitable[Any]]
    ) -> Stage[In, Awaitable[Any]]: ...
    @overload
    def __call__(self, handler: Callable[[In, Context], Out]) -> Stage[In, Out]: ...
    def __call__(self, handler: Callable[[In, Context], Any]) -> Stage[In, Any]:
        takes, returns = _signature(self._name, handler)
        joined = takes if isinstance(takes, _JoinOf) else None
        if joined is not None and not inspect.iscoroutinefunction(handler):
            raise BadSetup(f"Stage {self._name} reads a join, so its handler must be async.")
        return Stage(
            name=self._name,
            handler=handler,
            input=takes if isinstance(takes, type) else JoinRef,
            output=returns,
            emits=self._emits,
            concurrency=self._concurrency,
            timeout=self._timeout,
            retry=self._retry,
            prepare=self._prepare,
            joins=self._joins,
            joined=None if joined is None else joined.model,
            waits=self._waits,
            limits=checked(self._name, self._limits, joins=joined is not None),
        )


@dataclass(frozen=True)
class _JoinOf:
    model: type[BaseModel]


def _signature(
    name: str, handler: AnyHandler
) -> tuple[type[Any] | _JoinOf, type[BaseModel] | None]:
    hints = get_type_hints(handler)
    returns = hints.pop("return", None)
    takes: Any = next(iter(hints.values()), None)
    if get_origin(takes) is Joined:
        takes = _JoinOf(*get_args(takes))
    if isinstance(takes, _JoinOf):
        fits = isinstance(takes.model, type) and issubclass(takes.model, BaseModel)
    else:
        fits = isinstance(takes, type) and issubclass(takes, BaseModel)
    if not fits:
        raise BadSetup(
            f"Stage {name}: the handler's first parameter must be annotated with a pydantic model, "
            "or with Joined[…] of one."
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
        if JOIN in names:
            raise BadSetup(f"Flow {self.name}: {JOIN} is the agent that joins forks; rename it.")
        for each in self.stages:
            self._check(each)
        check_same(self.name, ((each.name, each.limits) for each in self.stages))

    def _check(self, each: Stage[Any, Any]) -> None:
        by_name = {s.name: s for s in self.stages}
        for target in each.emits:
            if target not in by_name and target not in self.sinks:
                raise BadSetup(
                    f"Stage {each.name} emits to {target}, which is no stage or sink of flow "
                    f"{self.name}."
                )
            if target in by_name and by_name[target].joined is not None:
                raise BadSetup(
                    f"Stage {each.name} emits to {target}, which takes Joined[…]: only a fork that "
                    "joins there hands to it."
                )
        self._check_joins(each, by_name)
        for target in each.calls:
            if target not in by_name:
                raise BadSetup(
                    f"Orchestration {each.name} calls {target}, which is no stage of flow "
                    f"{self.name}."
                )
        written = each.orchestrates or each.handler
        check_edges(each.name, written, emits=each.emits, joins=each.joins, waits=each.waits)
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

    def _check_joins(self, each: Stage[Any, Any], by_name: dict[str, Stage[Any, Any]]) -> None:
        for target in each.joins:
            if target not in by_name or by_name[target].joined is None:
                raise BadSetup(
                    f"Stage {each.name} joins into {target}, which is no stage of flow {self.name} "
                    "that takes Joined[…]."
                )
        if each.joins and not any(t in by_name for t in each.emits):
            raise BadSetup(
                f"Stage {each.name} forks, so its `emits` must name the stages of the children."
            )

    @property
    def forks(self) -> bool:
        """Whether any stage may fork."""
        return any(each.joins for each in self.stages)

    @property
    def waits(self) -> bool:
        """Whether any stage waits for signals or is an orchestration."""
        return any(each.waits or each.orchestrates for each in self.stages)

    @property
    def has_join(self) -> bool:
        """Whether it has a join agent: something forks, waits or is orchestrated."""
        return self.forks or self.waits

    @property
    def inputs(self) -> tuple[str, ...]:
        """Everything that consumes a topic of this flow: its stages, and the join agent if any."""
        return (*(s.name for s in self.stages), *((JOIN,) if self.has_join else ()))

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
