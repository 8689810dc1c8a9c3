"""Fingerprints are equal where the arguments are; results come back as they were."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streams.context import EffectCall
from streams.errors import BadRecord, BadSetup, EffectParked
from streams.ledger.values import answer_of, fingerprint


class Mail(BaseModel):
    subject: str
    tags: set[str] = set()
    sent: datetime | None = None


class Ticket(BaseModel):
    number: int
    at: datetime


@dataclass
class Place:
    street: str


async def anything(*args: Any, idempotency_key: str, **kwargs: Any) -> Any: ...


def call(fn: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> EffectCall:
    return EffectCall("t:act:0:reply", "reply", "t", "mail", "act", fn, args, kwargs, False)


def print_of(*args: Any, **kwargs: Any) -> str:
    return fingerprint(call(anything, *args, **kwargs))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_two_arguments_share_a_fingerprint_only_if_they_are_equal(a: Any, b: Any) -> None:
    assert (print_of(a) == print_of(b)) == (repr(a) == repr(b) or _same(a, b))


def _same(a: Any, b: Any) -> bool:
    """Equality as JSON has it: true is not 1, and the order of keys says nothing."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return repr(a) == repr(b)


def test_the_order_of_keywords_and_keys_says_nothing() -> None:
    assert print_of(a=1, b={"x": 1, "y": 2}) == print_of(b={"y": 2, "x": 1}, a=1)


def test_where_an_argument_stands_says_something() -> None:
    prints = {print_of(1, 2), print_of(2, 1), print_of([1, 2]), print_of(1, b=2), print_of(12)}
    assert len(prints) == 5


def test_a_set_has_the_same_fingerprint_in_every_process() -> None:
    # Strings hash differently under each seed, so that sets of them come in another order.
    program = """
from pydantic import BaseModel
from streams.context import EffectCall
from streams.ledger.values import fingerprint

class Mail(BaseModel):
    tags: set[str]

words = set("a quick brown fox jumps over the lazy dog".split())
args = (words, Mail(tags=words))
print(list(words), "|", fingerprint(EffectCall("k", "n", "t", "f", "s", print, args, {}, False)))
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("|")
        for seed in ("1", "2")
    ]
    orders, prints = zip(*outputs, strict=True)
    assert orders[0] != orders[1]
    assert prints[0] == prints[1]


def test_a_fingerprint_stays_what_it_was_in_earlier_releases() -> None:
    mail = Mail(subject="Grüße", tags={"b", "a"}, sent=datetime(2026, 1, 2, tzinfo=UTC))
    got = print_of(mail, Place("Main"), Decimal("1.50"), b"\0\1", (1, None), n=float("inf"))
    assert got == "75de34aad59c381176317877611a3f15"


@pytest.mark.parametrize("bad", [object(), (n for n in range(3)), lambda: None, [[object()]]])
def test_an_argument_without_canonical_json_is_named(bad: object) -> None:
    with pytest.raises(BadRecord, match="argument mail cannot be written as canonical JSON"):
        print_of(1, mail=bad)


def test_an_argument_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadRecord, match="nested too deeply"):
        print_of(loop)


def stored(fn: Callable[..., Awaitable[Any]], result: Any) -> Any:
    """What a redelivery gets of `result`."""
    asked = call(fn)
    answer = answer_of(asked)
    return answer.read(answer.write(result), asked)


async def ticket(*, idempotency_key: str) -> Ticket: ...  # type: ignore[empty-body]
async def tickets(*, idempotency_key: str) -> list[Ticket]: ...  # type: ignore[empty-body]
async def nothing(*, idempotency_key: str) -> None: ...
async def plain(*, idempotency_key: str): ...  # type: ignore[no-untyped-def]
async def verdict(*, idempotency_key: str) -> Literal["spam", "ham"]: ...  # type: ignore[empty-body]
def awaitable(*, idempotency_key: str) -> Awaitable[Ticket]: ...  # type: ignore[empty-body]


class Desk:
    async def file(self, *, idempotency_key: str) -> Ticket: ...  # type: ignore[empty-body]

    async def __call__(self, *, idempotency_key: str) -> Ticket: ...  # type: ignore[empty-body]


TICKET = Ticket(number=7, at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC))


@pytest.mark.parametrize(
    ("fn", "result"),
    [
        (ticket, TICKET),
        (tickets, [TICKET, TICKET]),
        (nothing, None),
        (plain, {"a": [1, 1e23, "\0\N{PILE OF POO}"]}),
        (verdict, "ham"),
        (awaitable, TICKET),
        (Desk().file, TICKET),
        (Desk(), TICKET),
        (functools.partial(ticket), TICKET),
    ],
)
def test_a_result_comes_back_by_the_return_annotation(
    fn: Callable[..., Awaitable[Any]], result: Any
) -> None:
    assert stored(fn, result) == result
    assert type(stored(fn, result)) is type(result)


def test_without_an_annotation_a_model_comes_back_as_plain_json() -> None:
    assert stored(plain, TICKET) == TICKET.model_dump(mode="json")


def test_a_result_without_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="serialize"):
        answer_of(call(plain)).write(object())


def test_a_stored_result_that_no_longer_fits_parks_the_job() -> None:
    with pytest.raises(EffectParked, match="is done, but its stored result does not fit") as e:
        answer_of(call(ticket)).read('{"number": 7}', call(ticket))
    assert e.value.kind == "result_unreadable"


async def keyless(mail: str) -> None: ...
async def homeless(*, idempotency_key: str) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821
async def strange(*, idempotency_key: str) -> Desk: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (call(keyless, "x"), "unexpected keyword argument 'idempotency_key'"),
        (call(ticket, 1), "too many positional arguments"),
        (call(homeless), "return annotation of the effect function homeless"),
        (call(strange), "return annotation of the effect function strange"),
        (call(anything, idempotency_key="mine"), "leave it out"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_is_claimed(
    asked: EffectCall, said: str
) -> None:
    with pytest.raises(BadSetup, match=said):
        answer_of(asked)
