"""JSON values by path: where two differ, which paths are meant, and what hides a value. Pure.

A path is written `data.items[0].id`. As a pattern `*` and `[*]` stand for any field or index, and
a pattern means what it names and all that is below. A field with a dot in it is quoted:
`data."a.b"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streams.errors import BadSetup

Path = tuple[str | int, ...]

_PART = re.compile(r'\.?(?:"([^"]+)"|([^.\[\]"]+))|\[(\d{1,9}|\*)\]')
_HIDDEN: Final = "[redacted]"


class _Missing:
    """There is no value at a path; `None` would be a JSON null."""

    def __repr__(self) -> str:
        return "nothing"

    def __reduce__(self) -> str:
        # One and the same object in every process.
        return "MISSING"


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True)
class Difference:
    """At `path` there was `was`, now there is `now`; `MISSING` where one of them has nothing."""

    path: Path
    was: Any
    now: Any


def parse_path(text: str) -> Path:
    """A path or a pattern as a person writes it. Raises `BadSetup`."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            break
        quoted, plain, index = found.groups()
        if index is not None:
            parts.append("*" if index == "*" else int(index))
        else:
            parts.append(quoted or plain)
        at = found.end()
    if not parts or at < len(text) or text.startswith("."):
        raise BadSetup(f"{text!r} is no path; data.items[0].id or data.items[*].id would be one.")
    return tuple(parts)


def spell(path: Path, *, any_index: bool = False) -> str:
    """As `parse_path` reads it; with `any_index` all items of a list have one spelling."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += "[*]" if any_index else f"[{part}]"
        else:
            name = f'"{part}"' if set(part) & set(".[]") else part
            text += f".{name}" if text else name
    return text


def covers(pattern: Path, path: Path) -> bool:
    """Whether `pattern` means `path` or something above it."""
    return len(pattern) <= len(path) and all(
        want in ("*", have) for want, have in zip(pattern, path, strict=False)
    )


def differences(was: Any, now: Any, at: Path = ()) -> Iterator[Difference]:
    """Where two JSON values differ, the deepest places. Objects have no order; 1 is not true."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*was, *now)):
            yield from differences(was.get(key, MISSING), now.get(key, MISSING), (*at, key))
    elif isinstance(was, list) and isinstance(now, list):
        for n in range(max(len(was), len(now))):
            one = was[n] if n < len(was) else MISSING
            other = now[n] if n < len(now) else MISSING
            yield from differences(one, other, (*at, n))
    elif type(was) is not type(now) or was != now:
        yield Difference(at, was, now)


def without(found: Iterable[Difference], ignored: Sequence[Path]) -> list[Difference]:
    """Those that no pattern of `ignored` means."""
    return [d for d in found if not any(covers(pattern, d.path) for pattern in ignored)]


def redacted(value: Any, patterns: Sequence[Path], at: Path = ()) -> Any:
    """`value`, which lies `at` a path, with what `patterns` mean replaced by values of the same
    type that say nothing."""
    if any(covers(pattern, at) for pattern in patterns):
        return _nothing_of(value)
    return _children(value, at, lambda child, path: redacted(child, patterns, path))


def _nothing_of(value: Any) -> Any:
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        return _HIDDEN
    if isinstance(value, int | float):
        return type(value)(0)
    return [] if isinstance(value, list) else _children(value, (), lambda v, _: _nothing_of(v))


def _children(value: Any, at: Path, change: Callable[[Any, Path], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(child, (*at, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [change(child, (*at, n)) for n, child in enumerate(value)]
    return value
