"""A small SMTP server (RFC 5321) in the test process, with an append-only record of its own.

It honours no idempotency keys: what it accepts twice is there twice. Its record is a file, as a
mail log is, so that a reconcile function can look into it.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Self

from tests.support.loop_thread import LoopThread

PORT_VARIABLE = "TEST_SMTP_PORT"
LOG_VARIABLE = "TEST_SMTP_LOG"


class Behaviour(Enum):
    """What the server does with a mail."""

    ACCEPT = "accept"
    #: Accepts it, and answers when `open` is called.
    HOLD = "accept, answer later"
    #: Accepts it, and closes the connection instead of answering.
    HANG_UP = "accept, hang up"
    #: Answers 450 to the recipient.
    REFUSE_RECIPIENT = "450"
    #: Answers 451 to the mail itself.
    REFUSE_DATA = "451"


class MailServer:
    """A context manager; runs in a thread of its own.

    `behaviours` are used up one by one, the last one stays. `accepted` is the record: a mail's
    Message-ID and subject.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.behaviours = [Behaviour.ACCEPT]
        self.sessions = 0
        self.held = 0
        self._lock = Lock()
        self._gate = asyncio.Event()
        self._thread = LoopThread("smtp")

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._thread.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.close(self._server)

    @property
    def environment(self) -> dict[str, str]:
        """What leads a sender here."""
        return {PORT_VARIABLE: str(self.port), LOG_VARIABLE: str(self.log)}

    @property
    def accepted(self) -> list[tuple[str, str]]:
        return read_log(self.log)

    def open(self) -> None:
        """Answer to those who are held."""
        self._thread.call(self._gate.set)

    def _behaviour(self) -> Behaviour:
        with self._lock:
            return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sessions += 1
        try:
            behaviour = self._behaviour()
            writer.write(b"220 test\r\n")
            while line := await reader.readline():
                verb = line[:4].upper()
                if verb == b"RCPT" and behaviour is Behaviour.REFUSE_RECIPIENT:
                    writer.write(b"450 busy\r\n")
                elif verb == b"DATA":
                    writer.write(b"354 go on\r\n")
                    if not await self._take(behaviour, reader, writer):
                        return
                elif verb == b"QUIT":
                    writer.write(b"221 bye\r\n")
                    return
                else:
                    writer.write(b"250 ok\r\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _take(
        self, behaviour: Behaviour, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Read a mail and do as told; False: hang up."""
        mail = (await reader.readuntil(b"\r\n.\r\n")).decode()
        if behaviour is Behaviour.REFUSE_DATA:
            writer.write(b"451 try later\r\n")
            return True
        headers = dict(line.split(": ", 1) for line in mail.split("\r\n\r\n")[0].split("\r\n"))
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{headers['Message-ID']}\t{headers['Subject']}\n")
        if behaviour is Behaviour.HANG_UP:
            return False
        if behaviour is Behaviour.HOLD:
            self.held += 1
            await self._gate.wait()
        writer.write(b"250 accepted\r\n")
        return True


def read_log(path: Path) -> list[tuple[str, str]]:
    """(Message-ID, subject) of each accepted mail."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(line.split("\t")[0], line.split("\t")[1]) for line in lines]
