"""`@orchestrator`: an async function over a `Run`, declared as a stage of its flow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel

from streams.context import Context
from streams.edges import called_stages
from streams.errors import BadSetup
from streams.flow import Stage, stage
from streams.orchestration.run import Run
from streams.outcome import Begin

In = TypeVar("In", bound=BaseModel)


class orchestrator:
    """Declare an orchestration: `@orchestrator("refund", emits="settled")`.

    The decorated async function takes one pydantic model and a `Run`, both annotated. What it
    returns ends the run: a model or `Done` ends the job, `Emit` hands it on, `Reject` and an
    exception fail it. `calls` names the stages that it calls where its own code does not name them
    (`run.call(score, …)` is seen). It is a stage like others: jobs are submitted, handed, rerun and
    redriven to it, and another orchestration may call it.

    Raises `BadSetup` for a function that is not async or not annotated.
    """

    def __init__(
        self, name: str, *, emits: str | tuple[str, ...] = (), calls: str | tuple[str, ...] = ()
    ) -> None:
        self._name, self._emits = name, emits
        self._calls = (calls,) if isinstance(calls, str) else tuple(calls)

    def __call__(self, function: Callable[[In, Run], Coroutine[Any, Any, Any]]) -> Stage[Any, Any]:
        if not inspect.iscoroutinefunction(function):
            raise BadSetup(f"Orchestration {self._name} must be an async function.")
        takes = _model(self._name, function)

        def begin(model: BaseModel, _: Context) -> Begin:
            return Begin(model)

        begin.__annotations__ = {"model": takes, "_": Context, "return": Begin}
        begin.__doc__ = function.__doc__
        declared: Stage[Any, Any] = stage(self._name, emits=self._emits)(begin)
        calls = tuple(dict.fromkeys((*self._calls, *called_stages(function))))
        return replace(declared, orchestrates=function, calls=calls)


@dataclass(frozen=True)
class Orchestration:
    """What a worker must know of an orchestrator to run it."""

    function: Callable[[Any, Run], Coroutine[Any, Any, Any]]
    input: type[BaseModel]
    calls: tuple[str, ...]


def orchestration_of(each: Stage[Any, Any]) -> Orchestration | None:
    """Of a stage that `@orchestrator` declared."""
    if each.orchestrates is None:
        return None
    return Orchestration(each.orchestrates, each.input, each.calls)


def _model(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    hints = get_type_hints(function)
    hints.pop("return", None)
    takes, run = [*hints.values(), None, None][:2]
    if not (isinstance(takes, type) and issubclass(takes, BaseModel)) or run is not Run:
        raise BadSetup(
            f"Orchestration {name}: annotate its two parameters with a pydantic model and with Run."
        )
    return takes
