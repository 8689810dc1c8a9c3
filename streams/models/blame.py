"""What a model's server did, by blame. Pure.

Nothing that a server said is quoted but a short code: it may repeat the text that it was sent, or
the key.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from streams.errors import BadRecord, BadWorld, EffectNotDone, HandoffError
from streams.retry_after import seconds

_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_FAULTS: Final = 5
_FAULT_CHARS: Final = 300

#: Which setting is to be looked at, by status.
_SETTINGS: Final = {
    401: "{prefix}API_KEY is not accepted",
    402: "the account of {prefix}API_KEY has to be paid for",
    403: "{prefix}API_KEY may not use the model of {prefix}NAME",
    404: "there is no such path or model: see to {prefix}URL and {prefix}NAME",
    405: "{prefix}URL is not the base of an OpenAI-compatible server",
}
_TOO_LARGE: Final = 413
#: What some servers say of a text that they do not take, others of a key or a model's name.
_UNCLEAR: Final = frozenset({400, 422})
_MS: Final = re.compile(r"[0-9]{1,9}")


class ModelAway(EffectNotDone, BadWorld):
    """There is no answer: the server is away, slow or busy, or refuses our key or the model's name.

    The effect is the answer, so there was none, whatever the server did: asking again costs tokens
    at most. The stage pauses, as long as the server asked for, and spends no attempt.

    Operator action: see to the server, or correct the setting that the message names and restart
    the worker; nothing is lost meanwhile.
    """


class BadAnswer(EffectNotDone):
    """The model answered, but with what cannot be used; the attempt counts, its tokens too.

    Operator action: look at the dead letter; another model, other instructions or a schema that
    asks for less, then redrive.
    """


def no_answer(url: str, prefix: str, how: str) -> ModelAway:
    """For a connection that was refused or broke, and for a time-out: `how`."""
    return ModelAway(f"The model server at {url} ({prefix}URL) {how}.", url=url)


def refusal(
    status: int,
    code: str | None,
    url: str,
    prefix: str,
    after_s: float | None,
    *,
    proven: bool,
) -> HandoffError:
    """For an HTTP status that is no success.

    `proven`: with these settings the server has answered before. Until then a request that it does
    not understand is blamed on them: else one wrong letter would dead-letter every job.
    """
    said = f"The model server at {url} answered {status}"
    if code is not None and _CODE.fullmatch(code):
        said += f" ({code})"
    if status == _TOO_LARGE or (status in _UNCLEAR and proven):
        return BadRecord(
            f"{said}: it does not take the text, which may be too long for the model.",
            url=url,
            status=status,
        )
    if status in _UNCLEAR:
        why = (
            f"it has not taken one request yet: see to {prefix}API_KEY and {prefix}NAME, and "
            "whether it knows answers by JSON schema"
        )
    elif status < 400:
        why = f"it redirects, which is not followed: see to {prefix}URL"
    else:
        why = _SETTINGS.get(status, "").format(prefix=prefix)
    said = f"{said}: {why}." if why else f"{said}."
    return ModelAway(said, after_s=after_s, url=url, status=status)


def wait_asked(after: str | None, after_ms: str | None, now: datetime) -> float | None:
    """Seconds by `Retry-After`, or by `retry-after-ms`, which is finer."""
    if after_ms is not None and _MS.fullmatch(after_ms.strip()):
        return int(after_ms) / 1000
    return seconds(after, now)


def unfit(model: str, name: str, schema: str, error: ValidationError) -> BadAnswer:
    """For an answer that is no JSON, or not of the schema: which fields, and how, not its words."""
    faults = "; ".join(
        f"{'.'.join(map(str, x['loc'])) or 'the whole'}: {x['msg']}"[:_FAULT_CHARS]
        for x in error.errors(include_url=False, include_context=False, include_input=False)[
            :_FAULTS
        ]
    )
    return bad_answer(model, name, f"is no {schema}: {faults}")


def bad_answer(model: str, name: str, how: str) -> BadAnswer:
    """`how` goes on from "The answer of …"."""
    return BadAnswer(f"The answer of model {model} to {name!r} {how}.", model=model, name=name)
