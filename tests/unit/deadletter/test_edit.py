"""Goal: an edit says what it changes, and never sends what the stage would refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streams.deadletter.edit import as_text, check_payload, difference, for_editor, set_fields
from streams.errors import BadRecord


class Line(BaseModel):
    sku: str
    count: int


class Order(BaseModel):
    name: str
    lines: list[Line] = []


PAYLOAD = b'{"name": "x", "lines": [{"sku": "a", "count": 1}], "big": 123456789012345678901}'


@pytest.mark.parametrize(
    ("assignment", "then"),
    [
        ("name=y", b'{"name":"y","lines":[{"sku":"a","count":1}],"big":123456789012345678901}'),
        ("name=7", b'{"name":7,"lines":[{"sku":"a","count":1}],"big":123456789012345678901}'),
        ('name="7"', b'{"name":"7","lines":[{"sku":"a","count":1}],"big":123456789012345678901}'),
        (
            "lines.0.count=2",
            b'{"name":"x","lines":[{"sku":"a","count":2}],"big":123456789012345678901}',
        ),
        ("lines=[]", b'{"name":"x","lines":[],"big":123456789012345678901}'),
        (
            "a.b=null",
            b'{"name":"x","lines":[{"sku":"a","count":1}],"big":123456789012345678901,'
            b'"a":{"b":null}}',
        ),
        (
            "name=a=b",
            b'{"name":"a=b","lines":[{"sku":"a","count":1}],"big":123456789012345678901}',
        ),
    ],
)
def test_a_field_is_set_and_the_others_stay(assignment: str, then: bytes) -> None:
    assert set_fields(PAYLOAD, [assignment]) == then


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("name", "takes PATH=VALUE"),
        ("=3", "takes PATH=VALUE"),
        ("lines.1.count=2", "1 is no index of a list of 1"),
        ("lines.x=2", "x is no index"),
        ("name.first=2", "no object to take first"),
        ("name=NaN", "cannot write again"),
    ],
)
def test_a_path_that_does_not_fit_is_named(assignment: str, says: str) -> None:
    with pytest.raises(BadRecord, match=says):
        set_fields(PAYLOAD, [assignment])


@pytest.mark.parametrize("payload", [None, b"", b"{", b"\xff", b"[" * 100_000])
def test_fields_of_what_is_no_json_cannot_be_set(payload: bytes | None) -> None:
    with pytest.raises(BadRecord, match="no JSON"):
        set_fields(payload, ["a=1"])


def test_a_payload_that_the_stage_does_not_take_is_refused_with_its_fields_and_not_its_values() -> (
    None
):
    bad = b'{"name": "x", "lines": [{"sku": "secret", "count": "many"}, {}]}'
    with pytest.raises(BadRecord) as refused:
        check_payload(bad, Order, 1_000)
    for field in ("no Order", "lines.0.count", "lines.1.sku", "lines.1.count", "Nothing was sent"):
        assert field in refused.value.message
    assert "secret" not in refused.value.message
    assert "many" not in refused.value.message
    with pytest.raises(BadRecord, match="Invalid JSON"):
        check_payload(b"{", Order, 1_000)
    check_payload(b'{"name": "x"}', Order, 1_000)


def test_a_payload_beyond_the_limit_is_refused() -> None:
    with pytest.raises(BadRecord, match="may have 10 "):
        check_payload(b'{"name": "x"}', Order, 10)


def test_the_difference_names_lines_of_fields() -> None:
    lines = difference(b'{"a": 1, "b": 2}', b'{"a":1,"b":3}')
    assert [x for x in lines if x[0] in "+-"] == [
        "--- letter",
        "+++ edited",
        '-  "b": 2',
        '+  "b": 3',
    ]
    assert difference(b'{"a": 1}', b'{"a":1}') == []
    assert difference(b"\xff broken", b"{}")[-2:] == [r"-\xff broken", "+{}"]


def test_text_for_people_holds_no_control_characters() -> None:
    assert as_text(b"\x1b[31mred\x07\xff") == r"\x1b[31mred\x07\xff"
    assert as_text('{"a": "\u009b31m"}'.encode()) == '{\n  "a": "\\x9b31m"\n}'
    assert as_text(None) == ""


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_payload_has_a_text_that_can_be_written(payload: bytes) -> None:
    for_editor(payload).encode()
    assert all(c.isprintable() or c in "\n\t" for c in as_text(payload))


def test_a_half_of_a_surrogate_pair_can_be_edited() -> None:
    assert for_editor(b'{"a": "\\ud800"}') == '{\n  "a": "\\ud800"\n}'
