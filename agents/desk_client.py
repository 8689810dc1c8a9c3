"""The desk over HTTP: the effects of `act`, each called with an idempotency key.

The desk honours `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), so a call of unknown
outcome may be repeated. One connection pool per event loop, made at the first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents.settings import desk_settings
from streams import BadRecord, BadWorld, EffectNotDone
from streams.retry_after import seconds

_CONFLICT = 409
_TOO_MANY = 429
_UNAVAILABLE = 503
_DETAIL_CHARS = 300


class DeskAnswer(BaseModel):
    """What the desk says of a ticket or a reply that it took."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    number: str = Field(min_length=1, max_length=100)


class DeskRefusedNow(EffectNotDone, BadWorld):
    """The desk did not take the call and did nothing: it is away, or has too much to do.

    The stage pauses, as long as the desk asked for by Retry-After, and spends no attempt.

    Operator action: see to the desk; the stage goes on by itself.
    """


async def file_ticket(payload: dict[str, Any], *, idempotency_key: str) -> DeskAnswer:
    """Open a ticket. Raises `BadWorld` (call again with this key) or `BadRecord` (refused)."""
    return await _post("tickets", payload, idempotency_key)


async def send_reply(payload: dict[str, Any], *, idempotency_key: str) -> DeskAnswer:
    """Send a reply; errors as in `file_ticket`."""
    return await _post("replies", payload, idempotency_key)


async def _post(path: str, payload: dict[str, Any], key: str) -> DeskAnswer:
    desk = await _desk()
    # The draft's value is a structured-field string, hence the quotes.
    headers = {"Idempotency-Key": f'"{key}"'}
    try:
        async with desk.session.post(
            f"{desk.url}/{path}", json=payload, headers=headers
        ) as response:
            text = await response.text()
            wanted = response.headers.get("Retry-After")
    except aiohttp.ClientConnectorError as e:
        raise DeskRefusedNow(f"The desk at {desk.url} cannot be reached: {e}.", key=key) from e
    except (aiohttp.ClientError, TimeoutError) as e:
        reason = str(e) or "it did not answer in time"
        raise BadWorld(
            f"The desk at {desk.url} did not finish {path} for key {key}: {reason}. The call may "
            "have taken effect; it is repeated with the same key.",
            key=key,
        ) from e
    return _read(path, key, response.status, text, seconds(wanted, datetime.now(UTC)))


def _read(path: str, key: str, status: int, text: str, after_s: float | None) -> DeskAnswer:
    """The answer. `after_s`: how long the desk wants to be left alone, if it said so."""
    said = f"The desk answered {status} to {path} for key {key}: {text.strip()[:_DETAIL_CHARS]}"
    if status == _TOO_MANY:
        raise DeskRefusedNow(said, after_s=after_s, key=key, status=status)
    # 409: an earlier call with this key is still running; its answer is ours, a little later.
    if status >= 500 or status == _CONFLICT:
        wait_s = after_s if status == _UNAVAILABLE else None
        raise BadWorld(said, after_s=wait_s, key=key, status=status)
    if status >= 300:
        raise BadRecord(said, key=key, status=status)
    try:
        return DeskAnswer.model_validate_json(text)
    except ValidationError as e:
        raise BadWorld(
            f"The desk's answer to {path} for key {key} cannot be read, so whether it took "
            "the call is not known; it is repeated with the same key.",
            key=key,
            status=status,
        ) from e


@dataclass(frozen=True, slots=True)
class _Desk:
    url: str
    session: aiohttp.ClientSession


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[_Desk, AsyncGenerator[_Desk, None]]] = (
    WeakKeyDictionary()
)


async def _desk() -> _Desk:
    """The desk as this event loop sees it; the settings are read when a loop first asks."""
    loop = asyncio.get_running_loop()
    if loop not in _desks:
        holder = _holder()
        # No other task of this loop comes in between: the first step of the holder does not wait.
        _desks[loop] = (await anext(holder), holder)
    return _desks[loop][0]


async def _holder() -> AsyncGenerator[_Desk, None]:
    """Keeps the session open until the loop shuts its generators down, as `asyncio.run` does."""
    settings = desk_settings()
    timeout = aiohttp.ClientTimeout(total=settings.timeout_s)
    # The stage bounds how many calls run at once.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield _Desk(settings.url.rstrip("/"), session)
