"""What a person may write after --filter: names with values, all of which must fit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from streams.errors import BadSetup


def filter_words(text: str, names: Sequence[str], every: str) -> dict[str, str]:
    """`stage=act error="time out"` by name. `every`: what no word at all would mean.

    Raises `BadSetup` that says what is wrong.
    """
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise BadSetup(f"--filter {text!r} cannot be read: {e}.") from None
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in names or not value:
            raise BadSetup(f"--filter takes {'=, '.join(names)}=; {word!r} is none of them.")
        if name in found:
            raise BadSetup(f"--filter names {name} twice.")
        found[name] = value
    if not found:
        raise BadSetup(f"--filter is empty: it would mean every {every}.")
    return found
