"""A TCP proxy between workers and a service, for the faults that only a network makes.

It forwards bytes, whatever they mean: so it serves for Postgres. `tests.support.kafka_proxy` also
reads Kafka's frames. Methods are for the test's thread; the traffic runs in one of the proxy's own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from tests.support.loop_thread import LoopThread

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_HOST = "127.0.0.1"
_CHUNK_BYTES = 65_536


class Link:
    """One connection of a client, and ours to the service."""

    def __init__(self, client: Stream, service: Stream) -> None:
        self.from_client, self.to_client = client
        self.from_service, self.to_service = service
        #: While it is cleared nothing passes, in either direction.
        self.flow = asyncio.Event()
        #: Nothing will ever pass again.
        self.half_open = False
        #: The client is gone; the link lives on for a request that is held back.
        self.detached = False

    def end(self) -> None:
        for writer in (self.to_client, self.to_service):
            # A reset: after a polite end the peer would finish reading.
            writer.transport.abort()


class Proxy:
    """Forwards bytes between clients and `upstream_port`, which may be set later.

    `delay_s` is added to each piece that passes, in both directions.
    """

    def __init__(self, upstream_port: int = 0) -> None:
        self.upstream_port = upstream_port
        self.delay_s = 0.0
        self._admits = self._flows = True
        self._links: set[Link] = set()
        self._thread = LoopThread("proxy")
        self._socket = socket.create_server((_HOST, 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._thread.run(asyncio.start_server(self._serve, sock=self._socket))
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.close(self._server)

    # -- faults --------------------------------------------------------------------------------

    def cut(self) -> None:
        """End every connection that there is now; the next ones work."""
        self._thread.call(self._cut)

    @contextmanager
    def away(self) -> Iterator[None]:
        """The service is gone: connections end, new ones end at once."""
        self._thread.call(lambda: self._admit(False))
        try:
            yield
        finally:
            self._thread.call(lambda: self._admit(True))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay and new ones are accepted, but nothing passes; afterwards it does."""
        self._thread.call(lambda: self._let_flow(False))
        try:
            yield
        finally:
            self._thread.call(lambda: self._let_flow(True))

    def go_half_open(self) -> None:
        """Over the connections that there are now nothing passes any more; new ones work."""

        def go() -> None:
            for link in self._links:
                link.half_open = True
                link.flow.clear()

        self._thread.call(go)

    # -- traffic -------------------------------------------------------------------------------

    def _cut(self) -> None:
        for link in self._links:
            link.end()

    def _admit(self, admit: bool) -> None:
        self._admits = admit
        if not admit:
            self._cut()

    def _let_flow(self, flows: bool) -> None:
        self._flows = flows
        for link in self._links:
            if flows and not link.half_open:
                link.flow.set()
            else:
                link.flow.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._admits:
                raise ConnectionError("away")
            service = await asyncio.open_connection(_HOST, self.upstream_port)
        except OSError:
            writer.transport.abort()
            return
        link = Link((reader, writer), service)
        self._links.add(link)
        if self._flows:
            link.flow.set()
        try:
            await self._carry(link)
        except asyncio.CancelledError:
            pass  # the proxy closes
        finally:
            link.end()
            self._links.discard(link)

    async def _carry(self, link: Link) -> None:
        """Until either side ends; one that is detached until the service ends."""
        requests = asyncio.ensure_future(self._requests(link))
        replies = asyncio.ensure_future(self._replies(link))
        try:
            await asyncio.wait((requests, replies), return_when=asyncio.FIRST_COMPLETED)
            if link.detached:
                await asyncio.wait((replies,))
        finally:
            for pump in (requests, replies):
                pump.cancel()
                with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
                    await pump

    async def _requests(self, link: Link) -> None:
        while data := await link.from_client.read(_CHUNK_BYTES):
            await self._pass(link, link.to_service, data)

    async def _replies(self, link: Link) -> None:
        while data := await link.from_service.read(_CHUNK_BYTES):
            await self._pass(link, link.to_client, data)

    async def _pass(self, link: Link, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await link.flow.wait()
        writer.write(data)
        await writer.drain()
