"""The effect target: a server in the soak's process with an append-only record of its own.

It can be told to lose answers (the effect has happened) and to refuse (it has not). Where the
caller says so it honours keys; otherwise each call that comes in is one more effect. The functions
at the top are what handlers in worker processes call.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from streams import EffectNotDone
from tests.support.loop_thread import LoopThread

SOCKET_VARIABLE: Final = "SOAK_DESK_SOCKET"


async def file(key: str, n: int, *, honours_keys: bool) -> int:
    answer = await _ask({"key": key, "n": n, "honours": honours_keys})
    if answer.get("refused"):
        raise EffectNotDone("The desk is closed.")
    return int(answer["n"])


async def look(key: str) -> int | None:
    """What was filed under `key`."""
    n = (await _ask({"look": key}))["n"]
    return None if n is None else int(n)


async def _ask(request: dict[str, Any]) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(os.environ[SOCKET_VARIABLE])
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        line = await reader.readline()
        if not line:
            raise ConnectionError("the desk did not answer")
        answer: dict[str, Any] = json.loads(line)
        return answer
    finally:
        writer.close()


class Desk:
    """The server, in a thread of its own; a context manager. `record`: a JSON line per effect."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.record = folder / "desk.socket", folder / "desk.jsonl"
        self._thread = LoopThread("desk")
        self._filed: dict[str, int] = {}
        self._mute = self._closed = False

    def __enter__(self) -> Self:
        self._file = self.record.open("ab", buffering=0)
        self._thread.start()
        starting = asyncio.start_unix_server(self._serve, str(self.socket), backlog=1_024)
        self._server = self._thread.run(starting)
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.close(self._server)
        self._file.close()

    @contextmanager
    def mute(self) -> Iterator[None]:
        """Errands are filed, answers are lost."""
        self._mute = True
        try:
            yield
        finally:
            self._mute = False

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Nothing is filed, and the desk says so."""
        self._closed = True
        try:
            yield
        finally:
            self._closed = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if line := await reader.readline():
                answer = self._answer(json.loads(line))
                if answer is not None:
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # whoever asked is dead, or the desk closes
        finally:
            writer.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if "look" in request:
            return {"n": self._filed.get(request["look"])}
        if self._closed:
            return {"refused": True}
        key, n = request["key"], request["n"]
        if key not in self._filed or not request["honours"]:
            # It has happened once its line is in the file.
            self._file.write(json.dumps({"what": "effect", "key": key, "n": n}).encode() + b"\n")
            self._filed.setdefault(key, n)
        return None if self._mute else {"n": n}
