"""What goes into the ledger: arguments as a fingerprint, results as JSON and back."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from streams.context import EffectCall
from streams.errors import BadRecord, BadSetup, EffectParked

_SCALARS = (str, int, float, bool, type(None))


def fingerprint(call: EffectCall) -> str:
    """Digest (32 hex digits) of name and arguments, equal in every process and every release.

    Raises `BadRecord` that names the argument which has no canonical JSON.
    """
    digest = blake2b(_canonical(call.name).encode(), digest_size=16, person=b"handoff-effect")
    arguments: list[tuple[int | str, Any]] = [
        *enumerate(call.args, 1),
        *sorted(call.kwargs.items()),
    ]
    for where, value in arguments:
        try:
            text = _canonical(value)
        except (TypeError, ValueError, RecursionError) as e:
            reason = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)
            raise BadRecord(
                f"Effect {call.name} of job {call.trace_id} at stage {call.stage} was not called: "
                f"its argument {where} cannot be written as canonical JSON ({reason}), so the "
                "ledger could not tell it from another. Pass plain values or pydantic models.",
                key=call.key,
                trace_id=call.trace_id,
                stage=call.stage,
            ) from e
        # JSON texts end by themselves, so that their concatenation has one reading.
        digest.update(f"{_canonical(where)}:{text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """`value` as JSON types. Sets are sorted: their own order differs from process to process."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, BaseModel):
        # Python mode keeps sets as sets; the leaves become JSON below.
        value = value.model_dump()
    elif is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else _canonical(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(v) for v in value), key=_canonical)
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Iterator):
        raise TypeError("an iterator can be read only once")
    return to_jsonable_python(value)


class Answer:
    """Results of one function: JSON for the ledger, and back by the return annotation."""

    def __init__(self, annotation: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def write(self, result: Any) -> str:
        """Raises `ValueError` where `result` has no JSON."""
        try:
            # A result that is not what the annotation says is found when it is read.
            return self._adapter.dump_json(result, warnings="none").decode()
        except (PydanticSerializationError, UnicodeError, RecursionError) as e:
            raise ValueError(str(e)) from e

    def read(self, stored: str, call: EffectCall) -> Any:
        """The result that every run of this effect gets, the first included."""
        try:
            return self._adapter.validate_json(stored)
        except ValidationError as e:
            raise EffectParked(
                f"Effect {call.name} of job {call.trace_id} at stage {call.stage} is done, but its "
                f"stored result does not fit the return annotation of {_name(call.fn)} "
                f"({e.error_count()} faults). Correct the annotation, then redrive the job.",
                kind="result_unreadable",
                key=call.key,
                trace_id=call.trace_id,
                stage=call.stage,
            ) from e


@functools.lru_cache(maxsize=1024)
def _answer_by_type(annotation: Any) -> Answer:
    return Answer(annotation)


_functions: WeakKeyDictionary[Any, tuple[Answer, inspect.Signature | None]] = WeakKeyDictionary()


def answer_of(call: EffectCall) -> Answer:
    """How results of `call.fn` are kept, after a check that it can be called like this.

    Raises `BadSetup`: nothing was claimed and nothing was called.
    """
    if "\0" in call.key:
        raise BadSetup(f"Effect name {call.name!r} holds a NUL, which Postgres cannot store.")
    answer, signature = _known(_inner(call.fn))
    _check_call(call, call.fn, signature)
    if call.reconcile is not None:
        _check_call(call, call.reconcile, _signature_of(_inner(call.reconcile)))
    if "idempotency_key" in call.kwargs:
        raise BadSetup(
            f"Effect {call.name} of stage {call.stage}: idempotency_key is passed by the ledger; "
            "leave it out."
        )
    return answer


def _inner(fn: Callable[..., Any]) -> Any:
    # A bound method is a new object each time; what it wraps is not.
    return getattr(fn, "__func__", fn)


def _check_call(
    call: EffectCall, fn: Callable[..., Any], signature: inspect.Signature | None
) -> None:
    if signature is None:
        return
    me = (getattr(fn, "__self__", None),) if _inner(fn) is not fn else ()
    try:
        signature.bind(*me, *call.args, **{"idempotency_key": call.key, **call.kwargs})
    except TypeError as e:
        raise BadSetup(
            f"Effect {call.name} of stage {call.stage} cannot call {_name(fn)}: {e}. It is called "
            "with the effect's arguments and idempotency_key=."
        ) from e


_signatures: WeakKeyDictionary[Any, inspect.Signature | None] = WeakKeyDictionary()


def _signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        if fn not in _signatures:
            _signatures[fn] = _signature(fn)
        return _signatures[fn]
    except TypeError:  # neither hashable nor weakly referable
        return _signature(fn)


def _known(fn: Callable[..., Any]) -> tuple[Answer, inspect.Signature | None]:
    try:
        known = _functions.get(fn)
        if known is None:
            known = _functions[fn] = (_answer(fn), _signature(fn))
        return known
    except TypeError:  # neither hashable nor weakly referable
        return _answer(fn), _signature(fn)


def _answer(fn: Callable[..., Any]) -> Answer:
    while isinstance(fn, functools.partial):
        fn = fn.func
    target = fn if inspect.isroutine(fn) else type(fn).__call__
    try:
        annotation = get_type_hints(target, include_extras=True).get("return", Any)
        if get_origin(annotation) in (Awaitable, Coroutine):
            annotation = get_args(annotation)[-1]
        try:
            hash(annotation)
        except TypeError:
            return Answer(annotation)
        return _answer_by_type(annotation)
    except (NameError, TypeError, PydanticUserError) as e:
        raise BadSetup(
            f"The return annotation of the effect function {_name(fn)} is of no use to store its "
            f"result: {(str(e).splitlines() or [type(e).__name__])[0]}. Annotate it with a "
            "pydantic model or a plain type."
        ) from e


def _signature(fn: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None  # a built-in that does not tell


def _name(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or repr(fn))
