"""An effect target in the test process, on a unix socket, with a record of its own.

It honours idempotency keys: a key that it knows changes nothing. Gates let a test hold handlers (or
the target's answers) until it has seen what it wants to see. The functions at the top are what
handlers in worker processes call.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any, Self

from tests.support.loop_thread import LoopThread

SOCKET_VARIABLE = "TEST_TARGET_SOCKET"


async def do_effect(key: str, n: int, answer_gate: str = "") -> int:
    answer = await _ask({"key": key, "n": n, "gate": answer_gate})
    return int(answer["n"])


async def pass_gate(name: str) -> None:
    await _ask({"gate": name})


async def _ask(request: dict[str, Any]) -> dict[str, Any]:
    request["pid"] = os.getpid()
    reader, writer = await asyncio.open_unix_connection(os.environ[SOCKET_VARIABLE])
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await reader.readline())
        return answer
    finally:
        writer.close()


class Target:
    """The server, in a thread of its own; a context manager.

    `calls` holds (key, n) of every call as it came, `effects` what each key did first.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.calls: list[tuple[str, int]] = []
        self.effects: dict[str, int] = {}
        self._waiting: Counter[tuple[str, int]] = Counter()
        self._lock = Lock()
        self._gates: dict[str, asyncio.Event] = {}
        self._thread = LoopThread("target")

    def __enter__(self) -> Self:
        # Each handler at a gate holds a connection; child processes inherit the limit.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))
        self._thread.start()
        starting = asyncio.start_unix_server(self._serve, str(self.socket), backlog=4_096)
        self._server = self._thread.run(starting)
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.close(self._server)

    def open(self, gate: str) -> None:
        """Let those who wait at `gate` pass, and all who come later."""
        self._thread.call(lambda: self._gate(gate).set())

    def waiting(self, gate: str, pid: int | None = None) -> int:
        """How many wait at `gate` now, of all processes or of one."""
        with self._lock:
            return sum(
                n
                for (name, process), n in self._waiting.items()
                if name == gate and pid in (None, process)
            )

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if not line:
                return
            request = json.loads(line)
            answer: dict[str, Any] = {}
            if "key" in request:
                key, n = request["key"], request["n"]
                self.calls.append((key, n))
                answer["n"] = self.effects.setdefault(key, n)
            if request["gate"] and not await self._passed(request, reader):
                return
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _passed(self, request: dict[str, Any], reader: asyncio.StreamReader) -> bool:
        """True once the gate is open; False when the asking process is dead before that."""
        place = (request["gate"], request["pid"])
        with self._lock:
            self._waiting[place] += 1
        opened = asyncio.ensure_future(self._gate(request["gate"]).wait())
        hung_up = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait((opened, hung_up), return_when=asyncio.FIRST_COMPLETED)
            return opened.done()
        finally:
            opened.cancel()
            hung_up.cancel()
            with self._lock:
                self._waiting[place] -= 1
