"""Which conversation a mail belongs to, by its subject: mail here brings no reference headers."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

# "Re:", "RE[2]:", "Fwd:", "AW:", "[ILUG]", "(Fwd)" and whatever of it is stacked at the front.
_MARK = re.compile(
    r"\s*(?:(?:re|fwd?|aw|wg|sv|antw)\s*(?:\[\d{1,3}\]|\(\d{1,3}\))?\s*:|\[[^\]]{1,40}\])"
)
_TAIL = re.compile(r"\s*\((?:fwd?|was:? .*)\)?\s*$")
_SPACE = re.compile(r"\s+")
_MAX_MARKS: Final = 20
#: Of a mail without a subject, this much of the body stands for it.
_BODY_CHARS: Final = 500


def thread_subject(subject: str) -> str:
    """The subject in lower case, without reply marks, list tags, "(was …)" and repeated blanks.

    A subject of nothing but tags is kept with them.
    """
    text = _SPACE.sub(" ", subject).strip().lower()
    rest = text
    for _ in range(_MAX_MARKS):
        mark = _MARK.match(rest)
        if mark is None:
            break
        rest = rest[mark.end() :]
    return _TAIL.sub("", rest).strip() or text


def thread_of(subject: str, body: str) -> str:
    """The thread's id, 16 hex digits. Mails without a subject share one only if equal."""
    name = thread_subject(subject)
    text = f"subject {name}" if name else f"body {body[:_BODY_CHARS]}"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=b"mail-thread")
    return digest.hexdigest()
