"""What the commit protocol depends on (decision 3, rule 10), read off the clients made."""

from collections.abc import Callable
from typing import Any

import pytest

from streams.config import Settings
from streams.kafka import clients

SETTINGS = Settings(transaction_timeout_ms=7_000, session_timeout_ms=5_000)
Made = list[dict[str, Any]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The configurations that clients are made with; nothing connects."""
    found: Made = []

    def keep(config: dict[str, Any]) -> object:
        found.append(config)
        return object()

    monkeypatch.setattr(clients, "Consumer", keep)
    monkeypatch.setattr(clients, "Producer", keep)
    return found


READERS: list[Callable[[], Any]] = [
    lambda: clients.group_consumer(SETTINGS, "mail.act", "mail.act-0"),
    lambda: clients.reading_consumer(SETTINGS, "mail.act"),
]


@pytest.mark.parametrize("make", READERS)
def test_readers_see_what_is_committed_and_guess_no_position(
    made: Made, make: Callable[[], Any]
) -> None:
    make()
    [config] = made
    assert config["isolation.level"] == "read_committed"
    assert config["auto.offset.reset"] == "error"
    assert config["enable.auto.commit"] is False


def test_a_member_is_static_and_gives_partitions_up_one_by_one(made: Made) -> None:
    clients.group_consumer(SETTINGS, "mail.act", "mail.act-0")
    [config] = made
    assert config["group.instance.id"] == "mail.act-0"
    assert config["partition.assignment.strategy"] == "cooperative-sticky"
    assert config["session.timeout.ms"] == 5_000


WRITERS: list[Callable[[], Any]] = [
    lambda: clients.transactional_producer(SETTINGS, "mail.act-0", lambda _: None),
    lambda: clients.idempotent_producer(SETTINGS),
]


@pytest.mark.parametrize("make", WRITERS)
def test_writers_wait_for_all_replicas_and_agree_on_the_partition_of_a_key(
    made: Made, make: Callable[[], Any]
) -> None:
    make()
    [config] = made
    # librdkafka's default is all, and a transactional or idempotent producer takes nothing less.
    assert config.get("acks", "all") == "all"
    assert "transactional.id" in config or config["enable.idempotence"] is True
    assert config["partitioner"] == "murmur2_random"


def test_a_transaction_has_the_slot_s_own_id_and_ends_by_itself(made: Made) -> None:
    clients.transactional_producer(SETTINGS, "mail.act-0", lambda _: None)
    [config] = made
    assert config["transactional.id"] == "mail.act-0"
    assert config["transaction.timeout.ms"] == 7_000
