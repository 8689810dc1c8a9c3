"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

LOOPBACK: Final = "127.0.0.1"

#: Below the ranges from which systems take the ports of outgoing connections. A port from there may
#: be taken by any client while its server restarts; a client that tries again and again to reach it
#: even ends up connected to itself.
_RANGE: Final = range(20_000, 32_000)
_TRIES: Final = 200


def free_ports(count: int, preferred: tuple[int, ...] = ()) -> tuple[int, ...]:
    """`count` different ports that are free at this moment; `preferred` if those are.

    Another process may take one before it is used: be ready to ask again.
    """
    if len(preferred) == count and _bindable(preferred):
        return preferred
    for _ in range(_TRIES):
        ports = tuple(random.sample(_RANGE, count))
        if _bindable(ports):
            return ports
    raise OSError(f"No {count} free ports found between {_RANGE.start} and {_RANGE.stop}.")


def _bindable(ports: tuple[int, ...]) -> bool:
    with ExitStack() as stack:
        for port in ports:
            probe = stack.enter_context(socket.socket())
            # As servers do: ports of connections that have just ended are free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                return False
    return True


def accepts(port: int) -> bool:
    """True if somebody listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0
