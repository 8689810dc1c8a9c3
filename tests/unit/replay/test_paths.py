"""Differences by path, patterns, and what hides a value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import BadSetup
from streams.replay.paths import (
    MISSING,
    Difference,
    covers,
    differences,
    parse_path,
    redacted,
    spell,
    without,
)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.text(min_size=1, max_size=5).filter(lambda t: '"' not in t)
paths = st.lists(names | st.integers(0, 99), min_size=1, max_size=4).map(tuple)


@given(paths)
def test_a_path_that_is_spelled_is_read_as_it_was(path: tuple[str | int, ...]) -> None:
    assert parse_path(spell(path)) == path


@pytest.mark.parametrize("text", ["", ".", "a..b", "a.", ".a", "a[", "a[x]", "a]", '"a', "a[-1]"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(BadSetup, match="is no path"):
        parse_path(text)


@given(values)
def test_a_value_does_not_differ_from_a_copy(value: Any) -> None:
    assert list(differences(value, json.loads(json.dumps(value)))) == []


@given(values, values)
def test_there_is_a_difference_exactly_where_json_texts_differ(a: Any, b: Any) -> None:
    same = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    # -0.0 and 0.0 are equal numbers with two spellings.
    if "-0.0" not in json.dumps([a, b]):
        assert (list(differences(a, b)) == []) == same


@given(values, values)
def test_each_difference_is_what_lies_at_its_path(a: Any, b: Any) -> None:
    def at(value: Any, path: Any) -> Any:
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError):
                return MISSING
        return value

    for d in differences(a, b):
        assert (at(a, d.path), at(b, d.path)) == (d.was, d.now)


def test_one_is_not_true_and_not_one_point_nought() -> None:
    assert [d.path for d in differences([1, 1, 0], [True, 1.0, False])] == [(0,), (1,), (2,)]


def test_what_one_side_lacks_is_missing_and_not_null() -> None:
    assert list(differences({"a": None, "l": [1]}, {"l": [1, None]})) == [
        Difference(("a",), None, MISSING),
        Difference(("l", 1), MISSING, None),
    ]


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        ("data.at", ("data", "at"), True),
        ("data.at", ("data", "at", "zone"), True),
        ("data.at", ("data",), False),
        ("data.at", ("data", "attempt"), False),
        ("data.items[*].id", ("data", "items", 7, "id"), True),
        ("data.items[1]", ("data", "items", 7), False),
        ("data.*.id", ("data", "x", "id"), True),
        ('data."a.b"', ("data", "a.b"), True),
        ('data."a.b"', ("data", "a", "b"), False),
    ],
)
def test_a_pattern_means_what_it_names_and_all_below(
    pattern: str, path: tuple[str | int, ...], meant: bool
) -> None:
    assert covers(parse_path(pattern), path) is meant
    found = [Difference(path, 1, 2)]
    assert without(found, [parse_path(pattern)]) == ([] if meant else found)


def test_redaction_keeps_types_and_everything_that_is_not_meant() -> None:
    value = {"who": {"name": "Ann", "age": 41, "vip": True}, "tags": ["a"], "n": 1.5, "t": "x"}
    hidden = redacted(value, [parse_path("data.who"), parse_path("data.tags")], ("data",))
    assert hidden == {
        "who": {"name": "[redacted]", "age": 0, "vip": False},
        "tags": [],
        "n": 1.5,
        "t": "x",
    }


@given(values)
def test_nothing_is_left_of_what_is_redacted_as_a_whole(value: Any) -> None:
    hidden = redacted({"secret": value}, [parse_path("secret")])

    def check(was: Any, now: Any) -> None:
        if isinstance(was, dict):
            for key in was:
                check(was[key], now[key])
        elif isinstance(was, str):
            assert now == "[redacted]"
        else:
            assert not now

    check(value, hidden["secret"])
