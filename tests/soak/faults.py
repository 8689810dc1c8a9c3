"""How each kind of fault is done and undone: a context manager that the fault lasts as long as."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final

from tests.soak.plant import Plant
from tests.support.kafka_proxy import Api
from tests.support.processes import frozen
from tests.support.proxy import Proxy

#: Added to whatever passes, in each direction.
_SLOW_S: Final = 0.06
#: A commit comes within so long, or it is too quiet for this fault.
_COMMIT_WITHIN_S: Final = 8.0

Doing = Callable[[Plant], AbstractContextManager[None]]


def worker_killed(plant: Plant) -> AbstractContextManager[None]:
    plant.crew.kill(1)
    return nullcontext()


def worker_terminated(plant: Plant) -> AbstractContextManager[None]:
    plant.crew.terminate(1)
    return nullcontext()


def worker_frozen(plant: Plant) -> AbstractContextManager[None]:
    return frozen(plant.crew.pid(1))


worker_frozen_past_its_session = worker_frozen


@contextmanager
def one_to_three_to_one(plant: Plant) -> Iterator[None]:
    """Slot 1 leaves, then both come, then slot 2 leaves for good: two are the normal crew."""
    plant.crew.dismiss(1)
    plant.crew.start(1)
    plant.crew.start(2)
    try:
        yield
    finally:
        for slot in (1, 2):
            plant.crew.dismiss(slot)
        plant.crew.start(1)


@contextmanager
def kafka_restarted(plant: Plant) -> Iterator[None]:
    plant.kafka.stop()
    try:
        yield
    finally:
        plant.kafka.start()


@contextmanager
def kafka_killed(plant: Plant) -> Iterator[None]:
    """SIGKILL, whatever is half done: transactions, their markers, segments."""
    plant.kafka.kill()
    try:
        yield
    finally:
        plant.kafka.start()


def kafka_frozen(plant: Plant) -> AbstractContextManager[None]:
    return frozen(plant.kafka.pid)


kafka_frozen_past_sessions = kafka_frozen


def kafka_away(plant: Plant) -> AbstractContextManager[None]:
    return plant.kafka_proxy.away()


def kafka_connections_cut(plant: Plant) -> AbstractContextManager[None]:
    plant.kafka_proxy.cut()
    return nullcontext()


def kafka_connections_half_open(plant: Plant) -> AbstractContextManager[None]:
    plant.kafka_proxy.go_half_open()
    return nullcontext()


def kafka_network_frozen(plant: Plant) -> AbstractContextManager[None]:
    return plant.kafka_proxy.frozen()


def kafka_network_slow(plant: Plant) -> AbstractContextManager[None]:
    return _slow(plant.kafka_proxy)


@contextmanager
def commit_reply_lost(plant: Plant) -> Iterator[None]:
    """The broker commits, nobody hears of it."""
    lost = plant.kafka_proxy.lose_reply(Api.END_TXN)
    try:
        lost.happened.wait(_COMMIT_WITHIN_S)
        yield
    finally:
        if not lost.happened.is_set():
            plant.kafka_proxy.forget()


@contextmanager
def commit_request_late(plant: Plant) -> Iterator[None]:
    """The driver sends it again over another connection; then the first comes through."""
    late = plant.kafka_proxy.hold(Api.END_TXN)
    caught = late.caught.wait(_COMMIT_WITHIN_S)
    try:
        yield
    finally:
        if caught:
            # Whether the broker takes it, or has dropped the connection, is the broker's business.
            with suppress(AssertionError):
                late.deliver()
        else:
            plant.kafka_proxy.forget()


@contextmanager
def postgres_restarted(plant: Plant) -> Iterator[None]:
    plant.postgres.stop()
    try:
        yield
    finally:
        plant.postgres.start()


@contextmanager
def postgres_killed(plant: Plant) -> Iterator[None]:
    plant.postgres.kill()
    try:
        yield
    finally:
        plant.postgres.start()


def postgres_backend_killed(plant: Plant) -> AbstractContextManager[None]:
    """The server ends all sessions and recovers."""
    backends = plant.backends()
    with suppress(ProcessLookupError):
        os.kill(random.choice(backends), signal.SIGKILL)  # which one is the machine's own chance
    return nullcontext()


def postgres_frozen(plant: Plant) -> AbstractContextManager[None]:
    return frozen(plant.postgres.pid, *plant.backends())


def postgres_away(plant: Plant) -> AbstractContextManager[None]:
    return plant.postgres_proxy.away()


def postgres_connections_cut(plant: Plant) -> AbstractContextManager[None]:
    plant.postgres_proxy.cut()
    return nullcontext()


def postgres_connections_half_open(plant: Plant) -> AbstractContextManager[None]:
    plant.postgres_proxy.go_half_open()
    return nullcontext()


def postgres_network_slow(plant: Plant) -> AbstractContextManager[None]:
    return _slow(plant.postgres_proxy)


def desk_answers_lost(plant: Plant) -> AbstractContextManager[None]:
    return plant.desk.mute()


def desk_refuses(plant: Plant) -> AbstractContextManager[None]:
    return plant.desk.closed()


@contextmanager
def _slow(proxy: Proxy) -> Iterator[None]:
    proxy.delay_s = _SLOW_S
    try:
        yield
    finally:
        proxy.delay_s = 0.0


def doing(kind: str) -> Doing:
    """The function of a kind in `schedule.KINDS`."""
    found: Doing = globals()[kind]
    return found
