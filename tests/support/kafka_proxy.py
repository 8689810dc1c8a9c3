"""A proxy that knows Kafka's frames: a test names the request whose reply is lost, or that is late.

with KafkaProxy() as proxy, broker_behind(proxy, folder) as kafka:
    rig.worker(kafka_bootstrap_servers=proxy.address)
    late = proxy.hold(Api.END_TXN)
    rig.wait(late.caught.is_set, "a commit is on its way")
    assert late.deliver() == error             # the code in the broker's reply
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from threading import Event

from infra.kafka import Kafka
from infra.process import Place
from tests.support.loop_thread import TIMEOUT_S
from tests.support.proxy import Link, Proxy

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
        assert self._replied.wait(TIMEOUT_S), "the broker did not answer the late request"
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
        #: Requests whose replies matter, by link and correlation id.
        self._awaited: dict[tuple[Link, int], LostReply | Held] = {}

    def lose_reply(self, api: Api, containing: bytes = b"") -> LostReply:
        """The next request of this kind is done by the broker; the client gets a cut connection.

        `containing`: bytes of the request, a transactional id for example.
        """
        fault = LostReply(api, containing)
        self._thread.call(lambda: self._faults.append(fault))
        return fault

    def hold(self, api: Api, containing: bytes = b"", *, cut: bool = True) -> Held:
        """Keep the next request of this kind until `deliver`.

        `cut`: the client's connection is ended, so that the client tries again on another; that of
        the proxy to the broker stays, as if the network had swallowed the request and now coughs it
        up. Otherwise the client waits, and what it sends behind it waits too.
        """
        held = Held(api, containing, cut=cut, loop=self._thread.loop)
        self._thread.call(lambda: self._faults.append(held))
        return held

    def forget(self) -> None:
        """Faults that have not come to pass will not, and what is held stays so for ever."""
        self._thread.call(self._faults.clear)
        self.cut()

    async def _requests(self, link: Link) -> None:
        while True:
            frame = await _frame(link.from_client)
            api, _, correlation = _REQUEST.unpack_from(frame, _LENGTH.size)
            self.seen[api] += 1
            fault = self._fault(api, frame)
            if fault is not None:
                self._awaited[link, correlation] = fault
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
            fault = self._awaited.pop((link, correlation), None)
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
    kafka = Kafka(Place(folder), proxy_port=proxy.port, brief=True)
    try:
        kafka.start()
        proxy.upstream_port = kafka.port_behind_proxy
        yield kafka
    finally:
        kafka.kill()
