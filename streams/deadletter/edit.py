"""Another payload for a letter: made, checked against the stage's model, compared. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from streams.errors import BadRecord

_FAULTS = 20


def as_text(payload: bytes | None) -> str:
    """A payload for people: JSON with one field a line, otherwise text; bytes that are no UTF-8 and
    control characters as escapes, so that no payload speaks to the terminal."""
    text = for_editor(payload)
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def for_editor(payload: bytes | None) -> str:
    """A payload as a person edits it: JSON with one field a line, otherwise text."""
    try:
        document = json.loads(payload or b"")
        text = json.dumps(document, indent=2, ensure_ascii=False)
        # Halves of surrogate pairs can be written as escapes only.
        return text if _is_utf8(text) else json.dumps(document, indent=2)
    except (ValueError, RecursionError):
        return (payload or b"").decode(errors="backslashreplace")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def set_fields(payload: bytes | None, assignments: Sequence[str]) -> bytes:
    """`payload` with each `PATH=VALUE` of `assignments` set: `a.b.0.c=VALUE`.

    A number in a path is an index where a list is. VALUE is JSON, or text where it is none. Objects
    on the way are made. Raises `BadRecord` that says which path does not fit.
    """
    try:
        document = json.loads(payload or b"")
    except (ValueError, RecursionError):
        raise BadRecord(
            "The payload is no JSON, so it has no fields to set. Give a whole one with --file."
        ) from None
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals or not path:
            raise BadRecord(f"--set takes PATH=VALUE, for example a.b=3; {assignment!r} is not.")
        document = _set(document, path.split("."), _value(value), path)
    try:
        return json.dumps(
            document, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()
    except ValueError:
        raise BadRecord(
            "The payload holds a number or text that JSON cannot write again. Give a whole one "
            "with --file."
        ) from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _set(document: Any, steps: Sequence[str], value: Any, path: str) -> Any:
    if not steps:
        return value
    step, *rest = steps
    if isinstance(document, dict):
        document[step] = _set(document.get(step, {} if rest else None), rest, value, path)
    elif isinstance(document, list):
        if not step.isdecimal() or int(step) >= len(document):
            raise BadRecord(
                f"--set {path}: {step} is no index of a list of {len(document)} (they begin at 0)."
            )
        document[int(step)] = _set(document[int(step)], rest, value, path)
    else:
        raise BadRecord(f"--set {path}: there is no object to take {step}.")
    return document


def check_payload(payload: bytes, model: type[BaseModel], limit_bytes: int) -> None:
    """Raises `BadRecord` that names each field at fault, never its value; or the size."""
    if len(payload) > limit_bytes:
        raise BadRecord(
            f"The new payload has {len(payload):,} bytes; a payload may have {limit_bytes:,} "
            "(HANDOFF_MAX_PAYLOAD_BYTES)."
        )
    try:
        model.model_validate_json(payload)
    except ValidationError as e:
        errors = e.errors(include_url=False, include_context=False, include_input=False)
        faults = [f"{'.'.join(map(str, x['loc'])) or 'the whole'}: {x['msg']}" for x in errors]
        more = f"; and {len(faults) - _FAULTS} more" if len(faults) > _FAULTS else ""
        raise BadRecord(
            f"The new payload is no {model.__name__}: {'; '.join(faults[:_FAULTS])}{more}. Nothing "
            "was sent."
        ) from None


def difference(old: bytes | None, new: bytes) -> list[str]:
    """Lines of a unified diff of the two payloads, without ends; none if they say the same."""
    lines = difflib.unified_diff(
        as_text(old).splitlines(), as_text(new).splitlines(), "letter", "edited", lineterm=""
    )
    return list(lines)
