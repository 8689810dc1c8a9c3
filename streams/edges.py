"""The edges that a handler names in its code, held against those that its stage declares.

Only literal names can be seen, `Emit("enrich", …)` and `Fork(…, join="digest")` in the handler's
own body; any other is refused when it is written (`streams.runtime.records`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from streams.errors import BadSetup
from streams.outcome import Emit, Fork, Wait

_Named = type[Emit] | type[Fork] | type[Wait]


def check_edges(
    stage: str,
    handler: Callable[..., Any],
    *,
    emits: tuple[str, ...],
    joins: tuple[str, ...],
    waits: tuple[str, ...],
) -> None:
    """Raises `BadSetup` if the handler's code names a stage that the declaration does not."""
    of = {Emit: (emits, "emits"), Fork: (joins, "joins"), Wait: (waits, "waits")}
    for call, to in _named(handler):
        declared, parameter = of[call]
        if to not in declared:
            known = ", ".join(declared) or "nothing"
            raise BadSetup(
                f"The handler of stage {stage} says {call.__name__} to {to}, but the stage "
                f"declares {known}: add it to its `{parameter}`."
            )


def called_stages(function: Callable[..., Any]) -> Iterator[str]:
    """Names of the stages that an orchestration calls: `run.call(score, …)`, or by the name."""
    known = _globals(function)
    for node in _calls(function):
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "call" and node.args):
            continue
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value
        elif hasattr(found := _resolve(first, known), "handler"):
            yield found.name


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    return found


def _calls(function: Callable[..., Any]) -> Iterator[ast.Call]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return  # made at run time: there is no source to read
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _named(handler: Callable[..., Any]) -> Iterator[tuple[_Named, str]]:
    known = _globals(handler)
    for node in _calls(handler):
        called = _resolve(node.func, known)
        if called is Emit:
            yield from ((Emit, to) for to in _text(node, 0, "to"))
        elif called is Fork:
            yield from ((Fork, to) for to in _text(node, 1, "join"))
        elif called is Wait:
            yield from ((Wait, to) for to in _text(node, 0, "signal"))


def _resolve(func: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(func, ast.Name):
        return known.get(func.id)
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return getattr(known.get(func.value.id), func.attr, None)
    return None


def _text(call: ast.Call, position: int, keyword: str) -> Iterator[str]:
    given = [k.value for k in call.keywords if k.arg == keyword]
    given += call.args[position : position + 1]
    for each in given:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
