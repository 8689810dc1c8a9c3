"""TCP proxies between workers and their services, for the faults that only a network makes.

`Proxy` forwards bytes, whatever they mean: it serves for Postgres. `KafkaProxy` reads Kafka's
frames, so that a test can name the request whose reply is lost, or that is delivered late.

    with KafkaProxy() as proxy, broker_behind(proxy, folder) as kafka:
        rig.worker(kafka_bootstrap_servers=proxy.address)
        late = proxy.hold(Api.END_TXN)
        rig.wait(late.caught.is_set, "a commit is on its way")
        assert late.deliver() == error             # the code in the broker's reply

Methods are for the test's thread; the traffic runs in a thread of the proxy's own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from threading import Event, Thread
from typing import Self, TypeVar

from infra.kafka import Kafka
from infra.process import Place

T = TypeVar("T")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_HOST = "127.0.0.1"
_CHUNK_BYTES = 65_536
_TIMEOUT_S = 60.0
_LENGTH = struct.Struct(">i")
#: How requests begin: api key, api version, correlation id. Replies begin with the last of them.
_REQUEST, _REPLY = struct.Struct(">hhi"), struct.Struct(">i")
#: How replies of the transaction coordinator go on: throttle time, error.
_ERROR = struct.Struct(">ih")


class Api(IntEnum):
    """Some requests of Kafka's protocol, by their keys there."""

    PRODUCE = 0
    FETCH = 1
    OFFSET_FETCH = 9
    JOIN_GROUP = 11
    HEARTBEAT = 12
    SYNC_GROUP = 14
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


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
        #: Requests whose replies matter, by correlation id.
        self.awaited: dict[int, LostReply | Held] = {}

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
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._socket = socket.create_server((_HOST, 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, sock=self._socket), self._loop
        )
        self._server = started.result(_TIMEOUT_S)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_S)
        self._loop.close()

    # -- faults --------------------------------------------------------------------------------

    def cut(self) -> None:
        """End every connection that there is now; the next ones work."""
        self._call(self._cut)

    @contextmanager
    def away(self) -> Iterator[None]:
        """The service is gone: connections end, new ones end at once."""
        self._call(lambda: self._admit(False))
        try:
            yield
        finally:
            self._call(lambda: self._admit(True))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay and new ones are accepted, but nothing passes; afterwards it does."""
        self._call(lambda: self._let_flow(False))
        try:
            yield
        finally:
            self._call(lambda: self._let_flow(True))

    def go_half_open(self) -> None:
        """Over the connections that there are now nothing passes any more; new ones work."""

        def go() -> None:
            for link in self._links:
                link.half_open = True
                link.flow.clear()

        self._call(go)

    # -- traffic -------------------------------------------------------------------------------

    def _call(self, do: Callable[[], T]) -> T:
        async def called() -> T:
            return do()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(_TIMEOUT_S)

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

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

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


class LostReply:
    """`happened` is set once the broker has answered, the answer is gone and the link is cut."""

    def __init__(self, api: Api, containing: bytes) -> None:
        self.api, self.containing = api, containing
        self.happened = Event()


class Held:
    """A request that the proxy keeps back. `caught` is set once there is one."""

    def __init__(
        self, api: Api, containing: bytes, *, cut: bool, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.api, self.containing, self.cut = api, containing, cut
        self.caught = Event()
        self.go, self.settled = asyncio.Event(), asyncio.Event()
        self._loop = loop
        self._reply = b""
        self._replied = Event()

    def deliver(self) -> int:
        """Let it go on to the broker; the error code of the broker's reply (0: accepted)."""
        assert self.caught.is_set(), "no such request has come"
        self._loop.call_soon_threadsafe(self.go.set)
        assert self._replied.wait(_TIMEOUT_S), "the broker did not answer the late request"
        _, error = _ERROR.unpack_from(self._reply, _REPLY.size)
        return int(error)

    def answered(self, reply: bytes) -> None:
        """Called by the proxy."""
        self._reply = reply
        self._replied.set()
        self.settled.set()


class KafkaProxy(Proxy):
    """Also knows where frames begin and which request is which. `seen` counts them.

    For a broker that sends its clients here: `broker_behind`.
    """

    def __init__(self, upstream_port: int = 0) -> None:
        super().__init__(upstream_port)
        self.seen: Counter[int] = Counter()
        self._faults: list[LostReply | Held] = []

    def lose_reply(self, api: Api, containing: bytes = b"") -> LostReply:
        """The next request of this kind is done by the broker; the client gets a cut connection.

        `containing`: bytes of the request, a transactional id for example.
        """
        fault = LostReply(api, containing)
        self._call(lambda: self._faults.append(fault))
        return fault

    def hold(self, api: Api, containing: bytes = b"", *, cut: bool = True) -> Held:
        """Keep the next request of this kind until `deliver`.

        `cut`: the client's connection is ended, so that the client tries again on another; that of
        the proxy to the broker stays, as if the network had swallowed the request and now coughs it
        up. Otherwise the client waits, and what it sends behind it waits too.
        """
        held = Held(api, containing, cut=cut, loop=self._loop)
        self._call(lambda: self._faults.append(held))
        return held

    def forget(self) -> None:
        """Faults that have not come to pass will not, and what is held stays so for ever."""
        self._call(self._faults.clear)
        self.cut()

    async def _requests(self, link: Link) -> None:
        while True:
            frame = await _frame(link.from_client)
            api, _, correlation = _REQUEST.unpack_from(frame, _LENGTH.size)
            self.seen[api] += 1
            fault = self._fault(api, frame)
            if fault is not None:
                link.awaited[correlation] = fault
            if isinstance(fault, Held):
                await self._keep(link, fault)
            await self._pass(link, link.to_service, frame)
            if isinstance(fault, Held):
                # The client may be dead: the link must not end with it before the reply is here.
                await fault.settled.wait()
            if link.detached:
                return

    def _fault(self, api: int, frame: bytes) -> LostReply | Held | None:
        for fault in self._faults:
            if fault.api == api and fault.containing in frame:
                self._faults.remove(fault)
                return fault
        return None

    @staticmethod
    async def _keep(link: Link, held: Held) -> None:
        if held.cut:
            link.detached = True
            link.to_client.transport.abort()
        held.caught.set()
        await held.go.wait()

    async def _replies(self, link: Link) -> None:
        while True:
            frame = await _frame(link.from_service)
            (correlation,) = _REPLY.unpack_from(frame, _LENGTH.size)
            fault = link.awaited.pop(correlation, None)
            match fault:
                case LostReply():
                    link.end()
                    fault.happened.set()
                    return
                case Held():
                    fault.answered(frame[_LENGTH.size :])
                    if link.detached:
                        return
            if not link.detached:
                await self._pass(link, link.to_client, frame)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame, its length included. Raises `IncompleteReadError` at the end."""
    head = await reader.readexactly(_LENGTH.size)
    (length,) = _LENGTH.unpack(head)
    return head + await reader.readexactly(length)


@contextmanager
def broker_behind(proxy: KafkaProxy, folder: Path) -> Iterator[Kafka]:
    """A broker of one's own: `bootstrap_servers` leads straight to it, `proxy.address` through."""
    kafka = Kafka(Place(folder), proxy_port=proxy.port)
    try:
        kafka.start()
        proxy.upstream_port = kafka.port_behind_proxy
        yield kafka
    finally:
        kafka.kill()
