"""A broker of the fault tests' own, whose workers come by a proxy and whose readers do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from infra.kafka import Kafka
from streams.config import Settings
from tests.support.kafka_proxy import KafkaProxy, broker_behind


@dataclass(frozen=True, slots=True)
class Hurt:
    """`kafka` may be stopped, stalled and started, `proxy` may do what networks do."""

    kafka: Kafka
    proxy: KafkaProxy
    #: Of this test alone; they lead straight to `kafka`.
    settings: Settings


@pytest.fixture(scope="session")
def own_broker() -> Iterator[tuple[Kafka, KafkaProxy]]:
    with (
        TemporaryDirectory() as folder,
        KafkaProxy() as proxy,
        broker_behind(proxy, Path(folder)) as kafka,
    ):
        yield kafka, proxy


@pytest.fixture
def hurt(own_broker: tuple[Kafka, KafkaProxy], settings: Settings) -> Iterator[Hurt]:
    kafka, proxy = own_broker
    own = settings.model_copy(update={"kafka_bootstrap_servers": kafka.bootstrap_servers})
    yield Hurt(kafka, proxy, own)
    proxy.forget()
    if kafka.pid is None:
        kafka.start()
